"""Training on digits: the loop and its log, the digits, the twin in PyTorch."""
