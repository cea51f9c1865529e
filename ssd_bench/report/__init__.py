"""From records to tables and figures: reads what is on disk, never imports torch."""
