"""Looks at a machine before it costs a night.

`python3 -m doctor` is the host's half: standard library and Python 3.8 only, for it runs before
anything is installed. `doctor.inside` is the half that needs torch, in the environment or image.
"""
