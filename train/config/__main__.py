"""`python -m train.config`: the JSON schema of experiment files."""

from train.config import schema

if __name__ == "__main__":
    print(schema(), end="")
