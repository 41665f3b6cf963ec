"""Every knob of an experiment: its type, range, default and one line of doc.

An experiment is a YAML file plus dotted overrides. This room says *what* is trained; where it
runs is an Accelerate config's business. `python -m train.config` prints the JSON schema that
editors use.
"""

from train.config.augment import Augment
from train.config.data import Data
from train.config.experiment import Config, knobs, schema
from train.config.model import Model
from train.config.optim import Optim
from train.config.progress import Eval

__all__ = ["Augment", "Config", "Data", "Eval", "Model", "Optim", "knobs", "schema"]
