"""Every public feature of a spider, killed at a random moment: no item is lost or changed."""
