"""The decode loop and its words; knows no method, task, paper or device by name."""
