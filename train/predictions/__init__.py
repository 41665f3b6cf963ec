"""What a model says of single pictures: of those that it was measured on, and of any other."""
