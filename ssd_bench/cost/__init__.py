"""What a pass costs: latency profiles, data sheets, and what follows from them."""
