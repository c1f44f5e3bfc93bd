"""Export of recorded items: formats and targets."""
