"""The decode loop, its data types and its acceptance rules; knows no method, task, paper or device by name."""
