"""What an experiment can do on this machine, measured by real steps."""
