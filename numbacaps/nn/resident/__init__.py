"""Both passes of a network as one kernel each: an image's capsules never leave its multiprocessor.

In reading order:

- :mod:`~numbacaps.nn.resident.shared_memory`, :mod:`~numbacaps.nn.resident.layers`,
  :mod:`~numbacaps.nn.resident.forward_layout`, :mod:`~numbacaps.nn.resident.backward_layout` and
  :mod:`~numbacaps.nn.resident.layout`: what fits, and where it lies, worked out once for a network.
- :mod:`~numbacaps.nn.resident.records`, :mod:`~numbacaps.nn.resident.pipeline`,
  :mod:`~numbacaps.nn.resident.row_addresses`: what the steps share.
- :mod:`~numbacaps.nn.resident.forward` and :mod:`~numbacaps.nn.resident.backward`: the kernels; each names its steps,
  a file each.
- :mod:`~numbacaps.nn.resident.pack_network` and :mod:`~numbacaps.nn.resident.pack_taps`: kernels packed by one launch,
  which :mod:`~numbacaps.nn.resident.packed_kernels` holds.
- :mod:`~numbacaps.nn.resident.passes`: the launches.
"""
