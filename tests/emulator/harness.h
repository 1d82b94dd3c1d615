// Appended to a generated kernel: runs it over a whole grid. Includes nothing of its own; primitives.h comes first.

// Returns 0, or 1 with a message in `fault`. Order: 0 forward, 1 backward, otherwise the seed of a shuffle. bias,
// workspace and scales may be null, of 0 bytes.
extern "C" int emulate(const void* a, size_t a_bytes, const void* b, size_t b_bytes, void* c, size_t c_bytes,
                       const void* bias, size_t bias_bytes, void* workspace, size_t workspace_bytes,
                       const void* a_scales, size_t a_scales_bytes, const void* b_scales, size_t b_scales_bytes,
                       double alpha, double beta, int m, int n, int k, unsigned blocks, unsigned slices, unsigned batch,
                       unsigned threads, size_t shared_bytes, unsigned order, int late_copies, char* fault,
                       size_t fault_bytes) {
    using emulator::machine;
    static Arguments arguments;
    arguments = {a, b, c, m, n, k, alpha, beta, bias, workspace, a_scales, b_scales};
    machine.fault.clear();
    machine.late_copies = late_copies != 0;
    machine.global = {{static_cast<const unsigned char*>(a), a_bytes, false},
                      {static_cast<const unsigned char*>(b), b_bytes, false},
                      {static_cast<const unsigned char*>(bias), bias_bytes, false},
                      {static_cast<const unsigned char*>(a_scales), a_scales_bytes, false},
                      {static_cast<const unsigned char*>(b_scales), b_scales_bytes, false},
                      {static_cast<const unsigned char*>(workspace), workspace_bytes, true},
                      {static_cast<const unsigned char*>(c), c_bytes, true}};
    machine.shared_storage.resize(shared_bytes + 128);
    machine.shared = machine.shared_storage.data();
    machine.shared += 128 - reinterpret_cast<uintptr_t>(machine.shared) % 128;
    machine.shared_bytes = shared_bytes;
    machine.body = [] { call_kernel(arguments); };
    machine.blocks = blocks;
    machine.batches = batch;

    std::mt19937 generator(order);
    // Every tile's first slice before any tile's second: what they keep for each other lies there meanwhile.
    for (unsigned slice = 0; slice < slices; ++slice) {
        machine.slice = order == 1 ? slices - 1 - slice : slice;
        for (machine.batch = 0; machine.batch < batch && machine.fault.empty(); ++machine.batch) {
            for (machine.block = 0; machine.block < blocks && machine.fault.empty(); ++machine.block) {
                emulator::run_block(threads, order, generator);
            }
        }
    }
    std::snprintf(fault, fault_bytes, "%s", machine.fault.c_str());
    return machine.fault.empty() ? 0 : 1;
}
