#include "hook/memory/graph_flights.h"

#include <algorithm>

#include "hook/lookup/own_calls.h"
namespace gemlet::hook {

uint64_t GraphFlights::others(const GraphLaunch& launch) const {
    uint64_t bytes = 0;
    for (const Flight& flight : flights_) {
        if (flight.launch.graph == launch.graph) continue;
        if (flight.launch.lane != launch.lane || !flight.left.empty()) bytes += flight.bytes;
    }
    return bytes;
}

uint64_t GraphFlights::begun() const {
    uint64_t bytes = 0;
    for (const Flight& flight : flights_)
        if (flight.launching > 0) bytes += flight.bytes;
    return bytes;
}

void GraphFlights::begin(const GraphLaunch& launch, uint64_t bytes) {
    Flight* flight = find(launch.graph);
    if (!flight) flight = &flights_.emplace_back(Flight{.launch = launch, .bytes = bytes, .left = {}});
    ++flight->launching;
    // On whichever of its streams it is now: it counts on all of them until it has ended.
    if (flight->launch.lane != launch.lane) flight->launch.lane = nullptr;
}

void GraphFlights::cancel(const GraphLaunch& launch) {
    Flight* flight = find(launch.graph);
    if (!flight) return;  // its handle is another's, or its context is gone
    if (--flight->launching == 0 && !flight->launched) flights_.erase(flights_.begin() + (flight - flights_.data()));
}

void GraphFlights::end(const GraphLaunch& launch, const std::vector<CUdeviceptr>& left, StreamEnd end) {
    Flight* flight = find(launch.graph);
    if (!flight) return drop_end(end);
    const bool alone = --flight->launching == 0;
    flight->launch = launch;
    if (!alone) flight->launch.lane = nullptr;
    flight->left.insert(flight->left.end(), left.begin(), left.end());
    flight->launched = true;
    drop_end(flight->end);
    flight->end = end;
    flight->over = false;
}

void GraphFlights::freed(CUdeviceptr left) {
    for (Flight& flight : flights_) std::erase(flight.left, left);
}

void GraphFlights::forget_those_over() {
    const RelaxedCapture relaxed;
    std::erase_if(flights_, [](Flight& flight) {
        const bool over = is_over(flight);
        if (over) drop_end(flight.end);
        return over;
    });
}

void GraphFlights::handle_free(const void* graph) {
    if (Flight* flight = find(graph)) flight->launch.graph = nullptr;
}

void GraphFlights::context_is_gone(CUcontext context) {
    std::erase_if(flights_, [=](const Flight& flight) { return flight.launch.context == context; });
}

void GraphFlights::streams_are_gone(CUcontext context) {
    for (Flight& flight : flights_) {
        if (flight.end.context != context) continue;
        flight.end = {};
        flight.over = true;
    }
}

GraphFlights::Flight* GraphFlights::find(const void* graph) {
    const auto is_its = [=](const Flight& flight) { return flight.launch.graph == graph; };
    const auto found = std::find_if(flights_.begin(), flights_.end(), is_its);
    return found == flights_.end() ? nullptr : &*found;
}

bool GraphFlights::is_over(const Flight& flight) {
    return flight.launching == 0 && flight.left.empty() && (flight.over || has_ended(flight.end));
}

}  // namespace gemlet::hook
