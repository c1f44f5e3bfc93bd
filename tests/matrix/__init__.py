"""Kills at random moments with every public feature of a spider: no item is lost or changed."""
