"""What the stages of `karat check` share: the session and its runs, agreement of logits, and what a stage ends in."""
