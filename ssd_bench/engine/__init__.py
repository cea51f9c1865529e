"""The decode loop with its probe, sampling, acceptance rules, losslessness, time and load."""
