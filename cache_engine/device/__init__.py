"""The only room that touches a GPU. Everything here is imported lazily and says plainly when there is none."""
