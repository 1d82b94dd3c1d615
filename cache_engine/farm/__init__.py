"""Compiling a model on many machines: Celery carries what to compile, a remote what was compiled.

A broker is not trusted. It carries JSON alone, a message can ask for a compile and for nothing else, and a result
counts when the remote has it, signed by who compiled it.

- ``messages`` -- what is asked, and what is answered; checked and bounded
- ``broker`` -- the queue, answers, and who compiles which key, in Redis; the Celery application
- ``making`` -- what a worker of any engine does: the remote gets the kernel, signed
- ``working`` -- a worker of Celery
- ``board`` -- what workers and submitters say of themselves in Redis, for people
- ``watching`` -- what a farm does now, by its queue and its board
- ``following`` -- what a submitter asks for, in which order, and when it will be done
- ``executor`` -- what every engine does for a submitter, and what became of a table
- ``submitting`` -- Celery: a table of kernels sent, followed, and sent again where a broker lost it
"""
