"""Training (section 5): loss, optimizers, schedule, training loop, processes."""
