"""The numbers, settings and features that the papers print, and the folders that hold them."""
