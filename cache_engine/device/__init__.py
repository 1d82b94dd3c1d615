"""The only room that touches a GPU. Everything here is entered lazily and says plainly when there is none."""
