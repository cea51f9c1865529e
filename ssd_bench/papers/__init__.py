"""Numbers that four papers report (KnapSpec, SWIFT in two versions, ConfLayers, KNN-SSD), compared with ours.

`reported` loads the printed numbers, settings, exhibits and features from the papers' folders; `audit` lists
disagreements among them.
"""
