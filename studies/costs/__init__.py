"""Cost tables of reference machines (`conf/costs`), fitted to results of `shapes`."""
