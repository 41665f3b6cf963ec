import itertools
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from conftest import SHIPPED
from hypothesis import given
from hypothesis import strategies as st

from host.errors import UsageError
from train import cli, config, experiment, verbs
from train.config import Config, knobs


def test_the_schema_is_current() -> None:
    assert Path("configs/schema.json").read_text() == config.schema(), "run `make schema`"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_experiments_load_and_name_the_schema(path) -> None:
    assert isinstance(experiment.load(path), Config)
    head = path.read_text().splitlines()[0]
    assert head == "# yaml-language-server: $schema=schema.json"
    assert "make train" in path.read_text()


def test_every_knob_has_a_type_a_default_and_a_doc() -> None:
    for name, field in knobs():
        assert field.annotation is not None, name
        assert not field.is_required(), name
        assert (field.description or "").endswith("."), name


def test_the_contract_s_knobs_are_there() -> None:
    wanted = {
        "name", "seed", "reproducibility", "lanes", "batch_size", "epochs", "max_steps",
        "data.source", "data.root", "data.workers", "model.name", "model.weights", "optim.name",
        "optim.lr", "optim.weight_decay", "optim.clip", "optim.warmup", "checkpoint.every",
        "checkpoint.keep", "eval.every", "log.every", "wandb.mode",
    }  # fmt: skip
    assert wanted <= {name for name, _ in knobs()}


def test_help_shows_each_knob_with_its_doc_and_default(capsys) -> None:
    for words in (["--help"], ["fit", "--help"]):
        with pytest.raises(SystemExit) as left:
            cli.parse(words)
        assert left.value.code == 0
        text = " ".join(capsys.readouterr().out.split())
        for name, field in knobs():
            assert f"--{name} " in text, name
            assert " ".join((field.description or "").split())[:30] in text.replace("- ", "-"), name


def test_help_lists_the_verbs_that_work(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["--help"])
    listed = capsys.readouterr().out
    for verb in verbs.found():
        assert re.search(rf"^    {verb}\s", listed, re.MULTILINE)
    assert not re.search(r"^    audit\s", listed, re.MULTILINE)


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("seed: 3\noptim: {lr: 0.5, momentum: 0.8}\n")
    over = cli.parse(["fit", "--optim.lr", "0.25", "--data.mean", "[0.5]"]).knobs
    loaded = experiment.load(file, over)
    assert (loaded.seed, loaded.optim.lr, loaded.optim.momentum) == (3, 0.25, 0.8)
    assert loaded.data.mean == [0.5]
    assert loaded.batch_size == Config().batch_size


def test_flags_do_not_read_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("SEED", "99")
    monkeypatch.setenv("NAME", "elsewhere")
    assert cli.parse(["fit"]).knobs == {}


def test_null_is_none_for_each_knob_that_may_be_none() -> None:
    """On the command line as in a file."""
    fields = dict(knobs())
    names = [n for n, field in fields.items() if field.default is None and n != "lanes"]
    assert {"augment.crop", "data.mean", "optim.clip", "augment.policy"} <= {*names}
    for name in names:
        given = cli.parse(["fit", f"--{name}", "null"]).knobs
        assert given == cli.parse(["fit", f"--{name}=null"]).knobs
        assert experiment.parse(given, "the command line") == Config(), name


def test_null_and_words_pass_the_command_line() -> None:
    over = cli.parse(
        ["fit", "--optim.clip", "null", "--max_steps=7", "--augment.flip", "true", "--name", "a"]
    ).knobs
    loaded = experiment.load(None, {"optim": {"clip": 1.0}} | over)
    assert (loaded.max_steps, loaded.augment.flip, loaded.name) == (7, True, "a")
    assert loaded.optim.clip is None


@given(
    st.integers(0, 2**63 - 1),
    st.floats(1e-6, 10),
    st.sampled_from([1, 2, 4, 8]),
    st.one_of(st.none(), st.floats(0.1, 5)),
)
def test_what_is_dumped_loads_as_it_was(tmp_path_factory, seed, lr, lanes, clip) -> None:
    made = Config(seed=seed, lanes=lanes, optim={"lr": lr, "clip": clip})
    path = tmp_path_factory.mktemp("dump") / "config.yaml"
    path.write_text(experiment.dump(made))
    assert experiment.load(path) == made
    assert set(yaml.safe_load(path.read_text())) == set(Config.model_fields)


def test_the_signature_follows_what_decides_the_result() -> None:
    base = Config()
    same = Config(
        name="b", data={"workers": 4, "root": "/x"}, log={"every": 1}, wandb={"mode": "offline"}
    )
    assert experiment.signature(base) == experiment.signature(same)
    assert experiment.differences(base, same) == []
    other = Config(seed=1, optim={"lr": 0.2})
    assert experiment.signature(base) != experiment.signature(other)
    assert experiment.differences(base, other) == [("seed", 0, 1), ("optim.lr", 0.1, 0.2)]


@pytest.mark.parametrize(
    ("batch", "lanes", "level", "would_do"),
    [
        (128, 12, "lockstep", 8),
        (120, 16, "lockstep", 8),
        (100, 8, "lockstep", 4),
        (100, 8, "fast", 10),
        (96, 7, "deterministic", 6),
        (7, 8, "lockstep", 1),
    ],
)
def test_lanes_that_do_not_fit_name_some_that_do(batch, lanes, level, would_do) -> None:
    knobs_ = {"batch_size": batch, "lanes": lanes, "reproducibility": level}
    with pytest.raises(UsageError, match=f"lanes: {would_do} would do"):
        experiment.load(None, knobs_)
    experiment.load(None, knobs_ | {"lanes": would_do})


def test_an_editor_that_follows_the_schema_would_refuse_what_we_refuse() -> None:
    schema = json.loads(Path("configs/schema.json").read_text())
    assert schema["additionalProperties"] is False
    for part in schema["$defs"].values():
        assert part["additionalProperties"] is False
    assert schema["$defs"]["Optim"]["properties"]["lr"]["exclusiveMinimum"] == 0


HOSTILE = {
    "a list as key": ("? [a]: 1", "the key .* is no word"),
    "a number as key": ("1: 2", "the key 1 is no word"),
    "brackets": ("a: " + "[" * 3000 + "]" * 3000, "nests too deep"),
    "a bomb of aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefgh")
        ),
        "more than 10000 values",
    ),
    "itself": ("a: &a [*a]", "more than 10000 values"),
    "a long text": ("name: " + "x" * 20_000_000, "larger than 64 KiB"),
    "a wrong text": ("name: " + "x y" * 9_000, r"name = 'x y.{76}…: string should match"),
    "a number of many digits": ("seed: " + "9" * 5000, "not valid YAML: Exceeds the limit"),
    "a number of base 8": ("seed: 010", "line 1, column 7: 010 is no plain number to YAML"),
    "a number of base 60": ("optim: {lr: 1:30}", "1:30 is no plain number to YAML"),
    "a number of base 16": ("optim: {warmup: 0x10}", "0x10 is no plain number"),
    "a number with a line in it": ("seed: 1_0", "1_0 is no plain number"),
    "an object": ('!!python/object/apply:os.system ["true"]', "could not determine a constructor"),
    "a batch of millions": ("batch_size: 200000000\nlanes: 3", "lanes: 2 would do"),
    "a batch of too many": ("batch_size: 3000000000", "batch_size = 3000000000: input should be"),
    "a dotted key": (
        "augment.flip: true",
        "augment.flip is one key, .* → write augment: and on the next line, two blanks in, flip",
    ),
    "yes for a number": ("epochs: yes", "epochs = True: .*in YAML, yes, no, on and off are"),
    "on for steps": ("optim: {warmup: on}", "optim.warmup = True: .*should not be true or false"),
    "no for a name": ("name: no", "name = False: .*should not be true or false"),
    "true in a list": (
        "optim: {milestones: [0.5, true]}",
        "optim.milestones = .*not be true or false",
    ),
    "nothing": ("# seed: 1", "holds no mapping of knobs → write lines such as `seed: 1`"),
    "a pickle": (
        "model: {weights: runs/a/net.pth}",
        "may run code when it is read.*Pretrained weights",
    ),
    "a path for weights": (
        "model: {weights: /data/my/net}",
        "neither a .safetensors file nor a hub id",
    ),
    "no deviation": ("data: {std: [0.0]}", "data.std = 0.0: input should be greater than 0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_line(case, tmp_path) -> None:
    text, says = HOSTILE[case]
    file = tmp_path / "e.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as raised:
        experiment.load(file)
    assert len(str(raised.value)) < 1000


def test_what_is_no_file_is_not_read(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/zero"), tmp_path / "fifo"):
        with pytest.raises(UsageError, match="is no regular file"):
            experiment.load(path)


def test_yaml_s_merge_is_plain(tmp_path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("optim: &o {lr: 0.3, momentum: 0.5}\n<<: {seed: 4, epochs: 2}\nseed: 5\n")
    found = experiment.load(file)
    assert (found.seed, found.epochs, found.optim.lr) == (5, 2, 0.3)


# Set beside what makes it do nothing: in a file, then on the command line.
IDLE = [
    ("optim: {name: sgd, betas: [0.9, 0.95]}", "optim.betas does nothing with optim.name: sgd"),
    ("optim: {eps: 1.0e-6}", "optim.eps does nothing with optim.name: sgd"),
    ("optim: {name: adamw, momentum: 0.8}", "optim.momentum does nothing with optim.name: adamw"),
    ("optim: {name: adamw, nesterov: false}", "optim.nesterov does nothing"),
    ("optim: {power: 3}", "optim.power does nothing with optim.schedule: cosine"),
    ("augment: {policy_strength: 5}", "augment.policy_strength does nothing with augment.policy"),
    ("optim: {schedule: constant, final: 0.1}", "optim.final does nothing with optim"),
    ("optim: {schedule: step, final: 0.1}", "optim.final does nothing with optim.schedule: step"),
    ("optim: {milestones: [0.3]}", "optim.milestones does nothing with optim.schedule: cosine"),
    ("optim: {schedule: linear, gamma: 0.5}", "optim.gamma does nothing"),
    ("data: {root: here}", "data.root does nothing with data.source: digits"),
    ("data: {cache_on: gpu, workers: 2}", "data.workers does nothing with data.cache_on: gpu"),
    ("data: {source: cifar10, holdout: 0.3}", "data.holdout does nothing with data.source: cifar"),
    ("data: {prefetch: 8}", "data.prefetch does nothing with data.workers: 0"),
    ("wandb: {project: mine}", "wandb.project does nothing with wandb.mode: off"),
    ("wandb: {entity: me}", "wandb.entity does nothing with wandb.mode: off"),
    ("model: {prefix: module.}", "model.prefix does nothing with model.weights: null"),
    ("numerics: portable\ntf32: true", "tf32 does nothing with numerics: portable"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), IDLE)
def test_a_knob_that_does_nothing_is_refused(tmp_path, text, said) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"c.yaml: {said}"):
        experiment.load(path)
    with pytest.raises(UsageError, match=f"the command line: {said}"):
        experiment.load(None, yaml.safe_load(text))


def test_what_the_command_line_turned_off_is_not_said(tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "optim: {name: adamw, betas: [0.9, 0.95], schedule: step, gamma: 0.5}\n"
        "data: {workers: 4, prefetch: 8}\nwandb: {mode: offline, project: mine}\n"
    )
    off = {"optim": {"name": "sgd", "schedule": "cosine"}, "data": {"workers": 0}}
    found = experiment.load(path, {**off, "wandb": {"mode": "off"}})
    assert (found.optim.betas, found.optim.gamma) == ((0.9, 0.999), 0.1)
    assert found.data.prefetch == 2
    assert experiment.signature(found) == experiment.signature(Config())
    # What is switched off on purpose keeps its settings.
    assert found.wandb.project == "mine"
    path.write_text("wandb: {mode: off, project: mine}")
    assert experiment.load(path).wandb.project == "mine"
    # As a run writes it, it is read again.
    path.write_text(experiment.dump(found))
    assert experiment.load(path) == found


def test_what_hangs_on_a_knob_that_was_taken_away_goes_with_it(tmp_path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("data: {workers: 4, prefetch: 4}\n")
    config = experiment.load(file, {"data": {"cache_on": "gpu"}})
    assert (config.data.workers, config.data.prefetch) == (0, 2)
    with pytest.raises(UsageError, match=r"data\.prefetch does nothing with data\.workers: 0"):
        experiment.load(file, {"data": {"cache_on": "gpu", "prefetch": 4}})


def test_a_number_of_channels_on_the_command_line() -> None:
    assert cli.parse(["fit", "--data.channels", "3"]).knobs == {"data": {"channels": "3"}}
    assert experiment.load(None, {"data": {"channels": "3"}}).data.channels == 3
    with pytest.raises(UsageError, match="should be 1 or 3"):
        experiment.load(None, {"data": {"channels": "2"}})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("0.5", "augment.crop is a list, and not 0.5 → write [0.5, …]"),
        ("[0.5]", "augment.crop has two values, and not [0.5] → give both"),
    ],
)
def test_a_list_is_asked_for_where_one_is_meant(tmp_path, given, says) -> None:
    (tmp_path / "e.yaml").write_text(f"augment: {{crop: {given}}}")
    with pytest.raises(UsageError) as raised:
        experiment.load(tmp_path / "e.yaml")
    assert says in str(raised.value)
