// A c10d backend that is towards Python what ProcessGroupNCCL is, without a device: ops that nobody
// waits for in Python have no handle, handles hold the outputs of their ops, and asking one may
// block. Tensors on a device are of `privateuseone`, and counted while they live.
//
// The device is the host with one stream, in which gloo moves the data: what a host launches or
// copies waits for the ops before it, and the host with it, as if the queue of launches was full. An
// op whose peer is gone never ends. There are no kernels before an op that keep it from its start.
#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Handle = c10::intrusive_ptr<c10d::Work>;
using Sizes = c10::SymIntArrayRef;
constexpr auto kDevice = c10::DeviceType::PrivateUse1;

std::atomic<int> block_ms{0};
std::atomic<bool> is_over{false};
std::atomic<long> asked{0}, asked_with_lock{0}, handles{0}, tensors{0};

// ------------------------------------------------------------------------------------ the device

// What is on its way on the device, in order; a thread of its own waits for one after the other.
struct Stream {
  void add(std::function<void()> wait) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (issued_++ == 0) {
      std::thread([this] { run(); }).detach();
    }
    pending_.push_back(std::move(wait));
    changed_.notify_all();
  }
  // The host waits for all that is there now; it must not hold the interpreter's lock.
  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this, until = issued_] { return over_ >= until; });
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "like_device");
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !pending_.empty(); });
      auto first = std::move(pending_.front());
      pending_.pop_front();
      lock.unlock();
      first();
      first = nullptr;  // its tensors go before anybody sees it end
      lock.lock();
      over_++;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pending_;
  long issued_ = 0, over_ = 0;
};

// Never freed: its thread lives as long as the process.
Stream& stream() {
  static Stream* const one = new Stream;
  return *one;
}

void spin(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  stream().add([end] { std::this_thread::sleep_until(end); });
}

void forget(void* memory) {
  tensors--;
  std::free(memory);
}

struct Allocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::malloc(bytes ? bytes : 1);
    tensors++;
    return {memory, memory, &forget, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct Guard : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return the_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return the_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return the_stream(); }
  // Nothing is computed while an op before it runs: what an event is asked for is over.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }

 private:
  static c10::Stream the_stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0)); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

// The memory of a tensor as a tensor of the host, which keeps it.
at::Tensor on_host(const at::Tensor& value) {
  if (value.is_cpu()) {
    return value;
  }
  return at::from_blob(value.data_ptr(), value.sizes(), value.strides(), [value](void*) {},
                       value.options().device(at::kCPU));
}
Tensors on_host(const Tensors& values) {
  Tensors made;
  for (const auto& value : values) {
    made.push_back(on_host(value));
  }
  return made;
}
Lists on_host(const Lists& lists) {
  Lists made;
  for (const auto& values : lists) {
    made.push_back(on_host(values));
  }
  return made;
}

at::Tensor make_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, keys,
                                           c10::dtype_or_default(type));
}
at::Tensor make_empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                      std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(type), format);
}
at::Tensor copy_over(const at::Tensor& from, const at::Tensor& to, bool) {
  stream().synchronize();
  on_host(to).copy_(on_host(from));
  return to;
}
at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_over(from, to, false);
}
const at::Tensor& resize(const at::Tensor& value, Sizes sizes, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(value, C10_AS_INTARRAYREF_SLOW(sizes), format);
}
at::Tensor reshape(const at::Tensor& value, Sizes sizes, Sizes strides) {
  return at::native::as_strided_tensorimpl(value, C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides));
}
at::Tensor stride(const at::Tensor& value, Sizes sizes, Sizes strides, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      value, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}
at::Tensor view(const at::Tensor& value, Sizes sizes) {
  return at::native::view(value, C10_AS_INTARRAYREF_SLOW(sizes));
}
at::Scalar read(const at::Tensor& value) {
  stream().synchronize();
  return on_host(value).item();
}
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  stream().synchronize();
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &make_empty);
  m.impl("empty_strided", &make_strided);
  m.impl("_copy_from", &copy_over);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("resize_", &resize);
  m.impl("_reshape_alias", &reshape);
  m.impl("as_strided", &stride);
  m.impl("view", &view);
  m.impl("_local_scalar_dense", &read);
}

at::Tensor make_tensor(int64_t count) {
  return make_empty({count}, at::kFloat, {}, {}, {}, {});
}

// ----------------------------------------------------------------------------------- the backend

void be_asked() {
  asked++;
  asked_with_lock += PyGILState_Check();
  std::this_thread::sleep_for(std::chrono::milliseconds(block_ms.load()));
}

struct LikeWork : c10d::Work {
  LikeWork(c10d::OpType type, Tensors outputs) : Work(-1, type), outputs_(std::move(outputs)) {
    handles++;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future_->markCompleted(c10::IValue(outputs_));
  }
  ~LikeWork() override { handles--; }
  bool isCompleted() override {
    be_asked();
    return is_over;
  }
  bool isSuccess() const override { return true; }
  float getDuration() const override {
    be_asked();
    return 1.0;
  }
  // As that of NCCL: the stream waits, and the host goes on.
  bool wait(std::chrono::milliseconds) override {
    if (opType_ == c10d::OpType::BARRIER) {
      stream().synchronize();
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Tensors flatten(const Lists& lists) {
  Tensors all;
  for (const auto& values : lists) {
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

using Type = c10d::OpType;

struct LikeBackend : c10d::Backend {
  LikeBackend(c10::intrusive_ptr<c10d::Backend> inner, int rank, int size)
      : Backend(rank, size), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "nccl_like"; }
  bool supportsCoalescing() const override { return true; }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void startCoalescing() override { is_coalescing_ = true; }
  Handle endCoalescing() override {
    is_coalescing_ = false;
    return c10::make_intrusive<LikeWork>(Type::COALESCED, Tensors{});
  }
  Handle allreduce(Tensors& values, const c10d::AllreduceOptions& options) override {
    auto all = on_host(values);
    return issue(Type::ALLREDUCE, values, options.asyncOp, inner_->allreduce(all, options));
  }
  Handle allreduce_coalesced(Tensors& values, const c10d::AllreduceCoalescedOptions& options) override {
    auto all = on_host(values);
    return issue(Type::ALLREDUCE_COALESCED, values, options.asyncOp, inner_->allreduce_coalesced(all, options));
  }
  Handle broadcast(Tensors& values, const c10d::BroadcastOptions& options) override {
    auto all = on_host(values);
    return issue(Type::BROADCAST, values, options.asyncOp, inner_->broadcast(all, options));
  }
  Handle reduce(Tensors& values, const c10d::ReduceOptions& options) override {
    auto all = on_host(values);
    return issue(Type::REDUCE, values, options.asyncOp, inner_->reduce(all, options));
  }
  Handle allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto all = on_host(outputs);
    auto own = on_host(inputs);
    return issue(Type::ALLGATHER, flatten(outputs), options.asyncOp, inner_->allgather(all, own, options));
  }
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto all = on_host(output), own = on_host(input);
    return issue(Type::_ALLGATHER_BASE, {output}, options.asyncOp, inner_->_allgather_base(all, own, options));
  }
  Handle allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto all = on_host(outputs), own = on_host(inputs);
    return issue(Type::COALESCED, outputs, options.asyncOp,
                 inner_->allgather_into_tensor_coalesced(all, own, options));
  }
  Handle gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto all = on_host(outputs);
    auto own = on_host(inputs);
    return issue(Type::GATHER, flatten(outputs), options.asyncOp, inner_->gather(all, own, options));
  }
  Handle scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    auto all = on_host(outputs);
    auto own = on_host(inputs);
    return issue(Type::SCATTER, outputs, options.asyncOp, inner_->scatter(all, own, options));
  }
  Handle reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    auto all = on_host(outputs);
    auto own = on_host(inputs);
    return issue(Type::REDUCE_SCATTER, outputs, options.asyncOp, inner_->reduce_scatter(all, own, options));
  }
  Handle _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto all = on_host(output), own = on_host(input);
    return issue(Type::_REDUCE_SCATTER_BASE, {output}, options.asyncOp,
                 inner_->_reduce_scatter_base(all, own, options));
  }
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& out_splits,
                       std::vector<int64_t>& in_splits, const c10d::AllToAllOptions& options) override {
    auto all = on_host(output), own = on_host(input);
    return issue(Type::ALLTOALL_BASE, {output}, options.asyncOp,
                 inner_->alltoall_base(all, own, out_splits, in_splits, options));
  }
  Handle barrier(const c10d::BarrierOptions& options) override {
    // gloo's own needs no device.
    auto made = issue(Type::BARRIER, {}, options.asyncOp, inner_->barrier(c10d::BarrierOptions()));
    if (!made) {
      stream().synchronize();
    }
    return made;
  }
  Handle send(Tensors& values, int peer, int tag) override {
    auto all = on_host(values);
    const bool to_itself = peer == getRank();  // which gloo cannot
    return issue(Type::SEND, values, true, to_itself ? nullptr : inner_->send(all, peer, tag));
  }
  Handle recv(Tensors& values, int peer, int tag) override {
    auto all = on_host(values);
    const bool to_itself = peer == getRank();  // which gloo cannot
    return issue(Type::RECV, values, true, to_itself ? nullptr : inner_->recv(all, peer, tag));
  }

 private:
  Handle issue(Type type, Tensors outputs, bool has_handle, Handle work) {
    if (work) {
      stream().add([work = std::move(work)] { wait_for(work); });
    }
    if (!outputs.empty() && outputs[0].is_cpu()) {
      stream().synchronize();
    }
    if (!has_handle || is_coalescing_) {
      return nullptr;
    }
    return c10::make_intrusive<LikeWork>(type, std::move(outputs));
  }
  static void wait_for(const Handle& work) {
    try {
      work->wait();
    } catch (const std::exception&) {
      for (;;) {  // a kernel that waits for a peer that is gone
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
    }
  }
  c10::intrusive_ptr<c10d::Backend> inner_;
  bool is_coalescing_ = false;
};

c10::intrusive_ptr<c10d::Backend> make(const c10::intrusive_ptr<c10d::Backend>& inner, int rank, int size) {
  return c10::make_intrusive<LikeBackend>(inner, rank, size);
}

// As DDP does in backward: a thread that has no frame of Python issues the ops.
void reduce_in_thread(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const at::Tensor& value, int ops) {
  std::thread([&] {
    pthread_setname_np(pthread_self(), "like_autograd");
    for (int op = 0; op < ops; op++) {
      Tensors values{value};
      c10d::AllreduceOptions options;
      options.asyncOp = true;
      group->allreduce(values, options)->wait();
    }
  }).join();
}

// What runs on the device holds its tensors, too.
long count_tensors() {
  stream().synchronize();
  return tensors.load();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def("make", &make);
  m.def("make_tensor", &make_tensor);
  m.def("spin", &spin);
  m.def("synchronize", [] { stream().synchronize(); }, Unlocked());
  m.def("reduce_in_thread", &reduce_in_thread, Unlocked());
  m.def("block", [](int milliseconds) { block_ms = milliseconds; });
  m.def("end_ops", [] { is_over = true; });
  m.def("asked", [] { return asked.load(); });
  m.def("asked_with_lock", [] { return asked_with_lock.load(); });
  m.def("handles", [] { return handles.load(); });
  m.def("tensors", &count_tensors, Unlocked());
}
