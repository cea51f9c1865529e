"""What a method and a task see: their contracts, and the types in them. Knows no method, task, paper or device."""
