"""The dashboard's frame: navigation, shared context, presenters and widgets."""
