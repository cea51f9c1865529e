"""Records in other tools' forms, and other tools' counts beside ours."""
