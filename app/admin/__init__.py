"""The tabs of the Admin page, a module each: ``draw(permitted)`` draws one, with what needs permission greyed out."""
