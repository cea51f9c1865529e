"""What four papers report (KnapSpec, SWIFT and its first version, ConfLayers, KNN-SSD) and what follows from it.

`reported` loads every printed number, setting, exhibit and feature from `data/`; `audit` recomputes what the papers'
own numbers imply and lists each disagreement.
"""
