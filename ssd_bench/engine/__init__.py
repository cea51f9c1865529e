"""The decode loop and what it needs: probe, sampling, acceptance rules, losslessness, time and load."""
