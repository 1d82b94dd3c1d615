"""Compiling a model on many machines: Celery runs the workers, and a remote has what was compiled.

A broker is not trusted. It carries JSON alone, a message can ask for a compile and for nothing else, and a result
counts when the remote has it, signed by who compiled it.

- ``broker`` -- the queue, answers, and who compiles which key, in Redis; for each farm, by its remote; the messages,
  checked and bounded
- ``worker`` -- processes of Celery, what each does, how the worker ends
- ``board`` -- what workers and submitters say of themselves in Redis, for people
- ``progress`` -- what a farm does now, by its queue and its board; a submitter's kernels, in order, and their end
- ``submission`` -- a table of kernels sent, followed, and sent again where it was lost
"""
