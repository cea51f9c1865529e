// Python bindings of the fused CPU kernels: checks that keep every read and write in bounds, dispatch on the dtype.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <optional>

#include "attend.h"
#include "limits.h"
#include "linear.h"

namespace {

using at::Tensor;
using ssd::bf16;
using ssd::f16;
using OptTensor = std::optional<Tensor>;

// Uninitialised float32; without the dispatcher it costs a fraction of at::empty.
Tensor new_floats(at::IntArrayRef sizes) {
  return at::detail::empty_cpu(sizes, at::kFloat);
}

void check_float(const Tensor& t, const char* name, int64_t dim) {
  TORCH_CHECK(t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous() && t.dim() == dim, name,
              " must be a contiguous float32 CPU tensor with ", dim, " dimensions");
}

const float* vector_or_null(const OptTensor& t, const char* name, int64_t size) {
  if (!t.has_value() || !t->defined()) return nullptr;
  check_float(*t, name, 1);
  TORCH_CHECK(t->size(0) == size, name, " must have ", size, " elements");
  return t->const_data_ptr<float>();
}

// Calls f with a typed null pointer for the dtype.
template <class F>
void with_type(const Tensor& t, const char* name, const F& f) {
  switch (t.scalar_type()) {
    case at::kFloat: return f(static_cast<float*>(nullptr));
    case at::kBFloat16: return f(static_cast<bf16*>(nullptr));
    case at::kHalf: return f(static_cast<f16*>(nullptr));
    default: TORCH_CHECK(false, name, " must be float32, bfloat16 or float16");
  }
}

// Multiplies rows that fill(node, target) writes, K long, by W into out [n, N].
template <class Fill>
void product(const Tensor& W, const OptTensor& bias, int64_t n, int64_t K, const Tensor& out, bool add, const Fill& fill) {
  TORCH_CHECK(W.device().is_cpu() && W.is_contiguous() && W.dim() == 2 && W.size(1) == K,
              "weight must be a contiguous [N, ", K, "] CPU tensor");
  const int64_t N = W.size(0);
  TORCH_CHECK(out.size(0) == n && out.size(1) == N, "residual must be [", n, ", ", N, "]");
  const ssd::Output target{out.mutable_data_ptr<float>(), N, vector_or_null(bias, "bias", N), add};
  with_type(W, "weight", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ssd::prepare_and_multiply<T>(W.const_data_ptr<T>(), N, K, n, target, fill);
  });
}

auto copy_rows(const Tensor& x) {
  const float* data = x.const_data_ptr<float>();
  const int64_t K = x.size(1);
  return [=](int64_t i, float* row) { std::memcpy(row, data + i * K, K * sizeof(float)); };
}

Tensor result(const Tensor& x, const Tensor& W) {
  TORCH_CHECK(W.dim() == 2, "weight must have 2 dimensions");
  return new_floats({x.size(0), W.size(0)});
}

Tensor norm_linear(const Tensor& x, const Tensor& norm_w, double eps, const Tensor& W, const OptTensor& bias) {
  check_float(x, "x", 2);
  const int64_t K = x.size(1);
  const float* data = x.const_data_ptr<float>();
  const float* weight = vector_or_null(norm_w, "norm_w", K);
  Tensor out = result(x, W);
  product(W, bias, x.size(0), K, out, false, [=](int64_t i, float* row) {
    ssd::rms_norm(data + i * K, weight, static_cast<float>(eps), K, row);
  });
  return out;
}

Tensor linear(const Tensor& x, const Tensor& W, const OptTensor& bias) {
  check_float(x, "x", 2);
  Tensor out = result(x, W);
  product(W, bias, x.size(0), x.size(1), out, false, copy_rows(x));
  return out;
}

void linear_add_(const Tensor& residual, const Tensor& x, const Tensor& W, const OptTensor& bias) {
  check_float(residual, "residual", 2);
  check_float(x, "x", 2);
  product(W, bias, x.size(0), x.size(1), residual, true, copy_rows(x));
}

void swiglu_linear_add_(const Tensor& residual, const Tensor& gate_up, const Tensor& W) {
  check_float(residual, "residual", 2);
  check_float(gate_up, "gate_up", 2);
  const int64_t I = gate_up.size(1) / 2;
  TORCH_CHECK(gate_up.size(1) == 2 * I, "gate_up must have an even number of columns");
  const float* data = gate_up.const_data_ptr<float>();
  product(W, std::nullopt, gate_up.size(0), I, residual, true, [=](int64_t i, float* row) {
    ssd::swiglu(data + i * 2 * I, data + i * 2 * I + I, I, row);
  });
}

void check_cache(const Tensor& keys, const Tensor& values, int64_t D) {
  for (const Tensor* t : {&keys, &values})
    TORCH_CHECK(t->device().is_cpu() && t->dim() == 3 && t->size(2) == D && t->stride(2) == 1 && t->stride(1) == D,
                "keys and values must be CPU tensors [Hkv, cap, ", D, "] with rows ", D, " elements apart");
  TORCH_CHECK(keys.scalar_type() == values.scalar_type() && keys.size(0) == values.size(0) &&
                  keys.size(1) == values.size(1),
              "keys and values must have one shape and dtype");
}

// x [D] of one head: optional RMS norm, then rotate_half RoPE, into out.
void norm_and_rotate(const float* x, const float* norm, float eps, const float* cos, const float* sin, int64_t D,
                     float* tmp, float* out) {
  if (norm) {
    ssd::rms_norm(x, norm, eps, D, tmp);
    x = tmp;
  }
  const int64_t half = D / 2;
  for (int64_t d = 0; d < half; d++) {
    const float a = x[d], b = x[d + half];
    out[d] = a * cos[d] - b * sin[d];
    out[d + half] = b * cos[d + half] + a * sin[d + half];
  }
}

Tensor rope_append(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const OptTensor& q_norm,
                   const OptTensor& k_norm, double eps, const Tensor& keys, const Tensor& values, int64_t row) {
  check_float(qkv, "qkv", 2);
  check_float(cos, "cos", 2);
  check_float(sin, "sin", 2);
  const int64_t n = qkv.size(0), D = cos.size(1), Hkv = keys.size(0);
  check_cache(keys, values, D);
  TORCH_CHECK(D % 2 == 0 && cos.size(0) == n && sin.size(0) == n && sin.size(1) == D, "cos and sin must be [n, D]");
  const int64_t Hq = qkv.size(1) / D - 2 * Hkv;
  TORCH_CHECK(Hq > 0 && qkv.size(1) == (Hq + 2 * Hkv) * D, "qkv must be [n, (Hq + 2 Hkv) * D]");
  TORCH_CHECK(row >= 0 && row + n <= keys.size(1), "cache rows [row, row + n) must exist");
  const float *qn = vector_or_null(q_norm, "q_norm", D), *kn = vector_or_null(k_norm, "k_norm", D);
  Tensor q = new_floats({n, Hq, D});
  float* q_out = q.mutable_data_ptr<float>();
  with_type(keys, "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T *k_data = keys.mutable_data_ptr<T>(), *v_data = values.mutable_data_ptr<T>();
    ssd::run_tasks(n, qkv.numel() >= ssd::kSerialFill, [&](int64_t i) {
      static thread_local ssd::Scratch scratch;
      float *tmp = scratch.get(2 * D), *rotated = tmp + D;
      const float* x = qkv.const_data_ptr<float>() + i * qkv.size(1);
      const float *c = cos.const_data_ptr<float>() + i * D, *s = sin.const_data_ptr<float>() + i * D;
      for (int64_t h = 0; h < Hq; h++, x += D)
        norm_and_rotate(x, qn, static_cast<float>(eps), c, s, D, tmp, q_out + (i * Hq + h) * D);
      for (int64_t h = 0; h < Hkv; h++, x += D) {
        norm_and_rotate(x, kn, static_cast<float>(eps), c, s, D, tmp, rotated);
        T* k = k_data + h * keys.stride(0) + (row + i) * D;
        for (int64_t d = 0; d < D; d++) k[d] = static_cast<T>(rotated[d]);
      }
      for (int64_t h = 0; h < Hkv; h++, x += D) {
        T* v = v_data + h * values.stride(0) + (row + i) * D;
        for (int64_t d = 0; d < D; d++) v[d] = static_cast<T>(x[d]);
      }
    });
  });
  return q;
}

Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values, int64_t prefix_len, int64_t row,
              const OptTensor& mask) {
  check_float(q, "q", 3);
  const int64_t n = q.size(0), Hq = q.size(1), D = q.size(2);
  check_cache(keys, values, D);
  const int64_t Hkv = keys.size(0);
  TORCH_CHECK(Hkv > 0 && Hq % Hkv == 0, "the query heads must be a multiple of the kv heads");
  TORCH_CHECK(0 <= prefix_len && prefix_len <= row && row + n <= keys.size(1),
              "0 <= prefix_len <= row and row + n <= cache rows must hold");
  const uint8_t* m = nullptr;
  if (mask.has_value() && mask->defined()) {
    TORCH_CHECK(mask->device().is_cpu() && (mask->scalar_type() == at::kBool || mask->scalar_type() == at::kByte) &&
                    mask->is_contiguous() && mask->dim() == 2 && mask->size(0) == n && mask->size(1) == n,
                "mask must be a contiguous bool or uint8 [n, n] CPU tensor");
    m = static_cast<const uint8_t*>(mask->const_data_ptr());
  }
  Tensor out = new_floats({n, Hq * D});
  with_type(keys, "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *k = keys.const_data_ptr<T>(), *v = values.const_data_ptr<T>();
    const ssd::Attention<T> a{q.const_data_ptr<float>(), k, v, keys.stride(0), values.stride(0), k + row * D,
                              v + row * D, keys.stride(0), values.stride(0), m, n, n, Hq / Hkv, Hkv, D, prefix_len, 0,
                              n, 1.0f / std::sqrt(static_cast<float>(D))};
    ssd::attend<T>(a, out.mutable_data_ptr<float>());
  });
  return out;
}

Tensor attend_branches(const Tensor& q, const Tensor& keys, const Tensor& values, int64_t prefix_len,
                       const Tensor& own_keys, const Tensor& own_values, int64_t branches) {
  check_float(q, "q", 3);
  const int64_t n = q.size(0), Hq = q.size(1), D = q.size(2), Hkv = keys.size(0);
  check_cache(keys, values, D);
  check_cache(own_keys, own_values, D);
  TORCH_CHECK(Hkv > 0 && Hq % Hkv == 0, "the query heads must be a multiple of the kv heads");
  TORCH_CHECK(branches > 0 && n % branches == 0, "the nodes must be a multiple of the branches");
  TORCH_CHECK(0 <= prefix_len && prefix_len <= keys.size(1), "0 <= prefix_len <= cache rows must hold");
  TORCH_CHECK(own_keys.is_contiguous() && own_values.is_contiguous() && own_keys.size(0) == Hkv &&
                  own_keys.size(1) == n && own_keys.scalar_type() == keys.scalar_type(),
              "own keys and values must be contiguous [Hkv, n, D], of the cache's dtype");
  Tensor out = new_floats({n, Hq * D});
  if (n == 0) return out;
  with_type(keys, "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const ssd::Attention<T> a{q.const_data_ptr<float>(), keys.const_data_ptr<T>(), values.const_data_ptr<T>(),
                              keys.stride(0), values.stride(0), own_keys.const_data_ptr<T>(),
                              own_values.const_data_ptr<T>(), n * D, n * D, nullptr, 0, n, Hq / Hkv, Hkv, D,
                              prefix_len, 0, n / branches, 1.0f / std::sqrt(static_cast<float>(D))};
    ssd::attend_branches<T>(a, n / branches, out.mutable_data_ptr<float>());
  });
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using py::arg;
  const auto no_bias = arg("bias") = py::none();
  const py::call_guard<py::gil_scoped_release> released;
  m.def("norm_linear", &norm_linear, released, arg("x"), arg("norm_w"), arg("eps"), arg("W"), no_bias);
  m.def("linear", &linear, released, arg("x"), arg("W"), no_bias);
  m.def("linear_add_", &linear_add_, released, arg("residual"), arg("x"), arg("W"), no_bias);
  m.def("swiglu_linear_add_", &swiglu_linear_add_, released, arg("residual"), arg("gate_up"), arg("W"));
  m.def("rope_append", &rope_append, released, arg("qkv"), arg("cos"), arg("sin"), arg("q_norm"), arg("k_norm"),
        arg("eps"), arg("keys"), arg("values"), arg("row"));
  m.def("attend", &attend, released, arg("q"), arg("keys"), arg("values"), arg("prefix_len"), arg("row"),
        arg("mask") = py::none());
  m.def("attend_branches", &attend_branches, released, arg("q"), arg("keys"), arg("values"), arg("prefix_len"),
        arg("own_keys"), arg("own_values"), arg("branches"));
  m.def("read_speeds", &ssd::read_speeds, released, arg("bytes"), arg("huge"), arg("rounds"));
  m.def("product_speeds", &ssd::product_speeds, released, arg("steps"), arg("rounds"));
}
