"""The formats: each writes a file, and gives back what calls the file as its readers would."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.export import Dim

from train.export.deployed import Deployed
from train.learn.weights import contiguous

Call = Callable[[Tensor], Tensor]
About = Mapping[str, Any]


def safetensors(path: Path, deployed: Deployed, about: About, blank: nn.Module) -> Call:
    """The weights alone.

    Args:
        blank: another such model, which takes the file's.
    """
    path.write_bytes(save(contiguous(deployed.model.state_dict()), {"format": "pt"}))
    for tensor in blank.state_dict().values():
        tensor.zero_()
    blank.load_state_dict(load_file(path))
    again = Deployed(blank, about["preprocessing"]["mean"], about["preprocessing"]["std"])
    return again.eval()


def onnx(path: Path, deployed: Deployed, about: About, images: Tensor) -> Call:
    """A program of ONNX, for any number of images."""
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            deployed,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    for name, value in about.items():
        program.model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value)
    # Above 1.5 GiB it keeps weights in a file beside it, which it names.
    program.save(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # of warnings, about machines, there are many
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda some: torch.from_numpy(session.run(None, {"images": some.numpy()})[0])


def pt2(path: Path, deployed: Deployed, about: About, images: Tensor) -> Call:
    """A program of torch.export, for any number of images; it needs torch alone."""
    with _quiet():
        program = torch.export.export(deployed, (images,), dynamic_shapes=({0: Dim("batch")},))
        torch.export.save(program, path, extra_files={"about.json": json.dumps(about)})
        call: Call = torch.export.load(path).module()
    return call


@contextmanager
def _quiet() -> Iterator[None]:
    """What exporters say of their own parts is nothing that a user can mend."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
