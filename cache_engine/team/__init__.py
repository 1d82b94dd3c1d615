"""Compiling a model on many machines: Celery runs the workers, and a remote has what was compiled.

A broker is not trusted. It carries JSON alone, a message can ask for a compile and for nothing else, and a result
counts when the remote has it, signed by the worker that compiled it.

- ``broker`` -- in Redis, for each farm (named by its remote): the queue, the answers, and who compiles which key;
  checks and bounds messages
- ``worker`` -- the processes of Celery: their work, and their end
- ``board`` -- the state that workers and submitters write to Redis, for people
- ``progress`` -- what a farm does now, by its queue and its board; a submitter's kernels in order, with a predicted end
- ``submission`` -- sends a table of kernels, follows it, and sends lost messages again
"""
