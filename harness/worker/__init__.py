"""Workers behind the executor seam: they obey the model runner's contract and report what they met."""
