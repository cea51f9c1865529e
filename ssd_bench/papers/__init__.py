"""Numbers that four papers report (KnapSpec, SWIFT in two versions, ConfLayers, KNN-SSD), compared with ours.

`reported` loads every printed number, setting, exhibit and feature from the papers' folders; `audit` recomputes the
papers' numbers from each other and lists disagreements.
"""
