"""The kernel caches of other frameworks, read and never run.

- ``values`` -- places, entries, their parts, findings, key factors
- ``base`` -- the protocol of a source: what knows one framework's cache
- ``folder`` -- reading a folder of others: bounded, no link followed, no trace left
- ``frameworks`` -- a source for each framework
- ``registry`` -- all sources, those of plug-ins too, and the places that they find
- ``survey`` -- scanning many places, and sums over what was found
- ``comparison`` -- why keys differ, of two entries or of two directories; ``culprits`` explains known reasons
- ``installed`` -- which versions of the frameworks are installed, by the metadata of packages
- ``doctor`` -- what is wrong with a cache, and the cure
- ``choosing`` -- which entries a cleaning is to delete; ``planning`` how
- ``deleting`` -- deleting them so that no process that uses them fails; ``rows`` -- those that are rows of a database
"""
