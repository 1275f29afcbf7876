// What a node of a CUDA graph costs: a chain of small kernels, some with others beside it, plain or such that each may begin before the
// end of the one that it waits for. With CUDA 13: `nvcc -O2 -arch=sm_90 -o graph_nodes bench/graph_nodes.cu && ./graph_nodes`
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) do { if (cudaError_t e = (call)) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

__global__ void small(float* x, bool early) {
    if (early) asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int k = 0; k < 200; k++) v = v * 1.0001f + 0.5f;
    x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

// Median microseconds of a launch of the graph, among launches one behind the other.
float microseconds(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < 8; run++) {
        CHECK(cudaEventRecord(begin, stream));
        for (int i = 0; i < 200; i++) CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float milliseconds;
        CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        if (run > 0) times.push_back(milliseconds * 5);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

// A chain, and kernels beside it that begin evenly along it; the chain waits for each 20 kernels later.
void measure(int chain, int beside, bool early) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    float* memory;
    CHECK(cudaMalloc(&memory, (size_t)(chain + beside) << 16));
    CHECK(cudaMemset(memory, 0, (size_t)(chain + beside) << 16));
    int made = 0;
    auto node = [&](int blocks, bool early) {
        float* x = memory + ((size_t)made++ << 14);
        void* args[] = {&x, &early};
        cudaGraphNodeParams params = {};
        params.type = cudaGraphNodeTypeKernel;
        params.kernel.func = (void*)small;
        params.kernel.gridDim = dim3(blocks);
        params.kernel.blockDim = dim3(256);
        params.kernel.kernelParams = args;
        cudaGraphNode_t node;
        CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
        return node;
    };
    auto edge = [&](cudaGraphNode_t from, cudaGraphNode_t to, bool early) {
        cudaGraphEdgeData data = {};
        if (early) data.from_port = cudaGraphKernelNodePortProgrammatic, data.type = cudaGraphDependencyTypeProgrammatic;
        CHECK(cudaGraphAddDependencies(graph, &from, &to, &data, 1));
    };
    std::vector<cudaGraphNode_t> nodes;
    for (int i = 0; i < chain; i++) {
        nodes.push_back(node(64, early));
        if (i > 0) edge(nodes[i - 1], nodes[i], early);
    }
    for (int i = 0; i < beside; i++) {
        int at = i * (chain - 2) / beside;
        cudaGraphNode_t other = node(16, false);
        edge(nodes[at], other, false);
        edge(other, nodes[std::min(at + 20, chain - 1)], false);
    }
    float time = microseconds(graph);
    printf("%3d kernels, %2d beside them, %s: %7.2f us, %.2f for each of the chain\n", chain, beside, early ? "early" : "plain", time, time / chain);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(memory));
}

int main() {
    for (bool early : {false, true}) {
        for (int chain : {30, 100, 200}) measure(chain, 0, early);
        measure(100, 30, early);
    }
}
