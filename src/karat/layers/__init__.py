"""The layers that model families are composed of, and how ranks share them."""
