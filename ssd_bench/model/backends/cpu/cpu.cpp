// Python bindings of the fused CPU kernels: checks that keep every read and write in bounds, dispatch on the dtype.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "limits.h"
#include "matrix.h"
#include "pass.h"
#include "top.h"

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
void with_type(at::ScalarType dtype, const char* name, const F& f) {
  switch (dtype) {
    case at::kFloat: return f(static_cast<float*>(nullptr));
    case at::kBFloat16: return f(static_cast<bf16*>(nullptr));
    case at::kHalf: return f(static_cast<f16*>(nullptr));
    default: TORCH_CHECK(false, name, " must be float32, bfloat16 or float16");
  }
}

// As `with_type`, also for weights in 8 and in 4 bits.
template <class F>
void with_weights(at::ScalarType dtype, const char* name, const F& f) {
  if (dtype == at::kChar) return f(static_cast<int8_t*>(nullptr));
  if (dtype == at::kByte) return f(static_cast<ssd::Tile4*>(nullptr));
  with_type(dtype, name, f);
}

// A matrix of weights, packed once; parts of it share its memory. Weights in 8 bits have a scale for every row; those in
// 4 bits have scales and minima in their tiles.
class Matrix {
 public:
  // Packs W [rows, width], with scale [rows] for int8; or a matrix in 4 bits: W [rows, tiles, 16] uint8 with scale and
  // minimum [rows, tiles].
  explicit Matrix(const Tensor& W, OptTensor scale = {}, const OptTensor& minimum = {}, int64_t width = 0)
      : dtype_(W.scalar_type()), rows_(W.size(0)), width_(minimum ? width : W.size(1)) {
    const int64_t tiles = ssd::ceil_div(width_, ssd::kDepth);
    TORCH_CHECK(W.device().is_cpu() && W.is_contiguous() && W.dim() == (minimum ? 3 : 2) && W.numel() > 0,
                "a matrix must be a contiguous CPU tensor [rows, width]");
    TORCH_CHECK(minimum.has_value() == (dtype_ == at::kByte), "weights in 4 bits have a minimum, others have none");
    if (minimum) {
      TORCH_CHECK(W.size(1) == tiles && W.size(2) == ssd::kDepth / 2, "weights in 4 bits must be [rows, tiles, 16]");
      for (const OptTensor& t : {scale, minimum})
        TORCH_CHECK(t && t->is_contiguous() && t->scalar_type() == at::kHalf && t->sizes() == W.sizes().slice(0, 2),
                    "scales and minima must be float16 [rows, tiles]");
    } else {
      scale_ = std::move(scale);
      TORCH_CHECK((vector_or_null(scale_, "scale", rows_) != nullptr) == (dtype_ == at::kChar),
                  "int8 weights have a scale, others have none");
    }
    with_weights(dtype_, "a matrix", [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      part_ = ssd::take_part(packed<T>().bytes());
      const auto to = packed<T>();
      ssd::share_out(to.panels(), W.numel() >= ssd::kSerialWork, [&](int64_t p) {
        const int64_t first = p * ssd::kPanel, count = std::min<int64_t>(ssd::kPanel, rows_ - first);
        T* panel = const_cast<T*>(to.panel(p));
        if constexpr (std::is_same_v<T, ssd::Tile4>)
          ssd::pack_panel(W.const_data_ptr<uint8_t>() + first * tiles * (ssd::kDepth / 2),
                          scale->const_data_ptr<f16>() + first * tiles, minimum->const_data_ptr<f16>() + first * tiles,
                          count, tiles, panel);
        else
          ssd::pack_panel(W.const_data_ptr<T>() + first * width_, count, width_, panel);
      });
    });
  }

  template <class T>
  ssd::Packed<T> packed() const {
    return {reinterpret_cast<const T*>(part_.data), rows_, width_};
  }

  // Rows [begin, end); begin must be the first row of a panel.
  Matrix slice(int64_t begin, int64_t end) const {
    end = std::min(end, rows_);
    TORCH_CHECK(0 <= begin && begin < end && begin % ssd::kPanel == 0, "rows must begin at a multiple of ", ssd::kPanel);
    Matrix part = *this;
    part.rows_ = end - begin;
    if (part.scale_) part.scale_ = part.scale_->slice(0, begin, end);
    part.part_.data += begin / ssd::kPanel * (tile_bytes() / ssd::ceil_div(rows_, ssd::kPanel));
    return part;
  }

  // Rows as floats [ids, width].
  Tensor floats(const Tensor& ids) const {
    TORCH_CHECK(ids.device().is_cpu() && ids.scalar_type() == at::kLong && ids.dim() == 1 && ids.is_contiguous(),
                "ids must be a contiguous int64 CPU tensor with 1 dimension");
    const int64_t n = ids.size(0), *id = ids.const_data_ptr<int64_t>();
    Tensor out = new_floats({n, width_});
    float* to = out.mutable_data_ptr<float>();
    for (int64_t i = 0; i < n; i++)
      TORCH_CHECK_INDEX(0 <= id[i] && id[i] < rows_, "id ", id[i], " is not one of ", rows_, " rows");
    with_type(dtype_, "a matrix", [&](auto* type) {
      const auto W = packed<std::remove_pointer_t<decltype(type)>>();
      ssd::share_out(n, n * width_ >= ssd::kSerialWork, [&](int64_t i) { ssd::unpack_row(W, id[i], to + i * width_); });
    });
    return out;
  }

  // Some rows as a new matrix.
  Matrix select(const Tensor& ids) const { return Matrix(floats(ids).to(dtype_)); }

  // Scale of every row of weights in 8 bits; else null.
  const float* scale() const { return scale_ ? scale_->const_data_ptr<float>() : nullptr; }
  // Bytes of the tiles, padding included; of weights in 8 bits also of their scale.
  int64_t nbytes() const { return tile_bytes() + (scale_ ? static_cast<int64_t>(scale_->nbytes()) : 0); }
  at::ScalarType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t address() const { return reinterpret_cast<int64_t>(part_.data); }

 private:
  int64_t tile_bytes() const {
    int64_t bytes = 0;
    with_weights(dtype_, "a matrix", [&](auto* type) { bytes = packed<std::remove_pointer_t<decltype(type)>>().bytes(); });
    return bytes;
  }

  at::ScalarType dtype_;
  int64_t rows_, width_;
  OptTensor scale_;
  ssd::Part part_;
};

// Multiplies rows that fill(node, target) writes, K long, by W into out [n, N].
template <class Fill>
void product(const Matrix& W, const OptTensor& bias, int64_t n, int64_t K, const Tensor& out, bool add, const Fill& fill) {
  TORCH_CHECK(W.width() == K, "weight must be [N, ", K, "]");
  const int64_t N = W.rows();
  TORCH_CHECK(out.size(0) == n && out.size(1) == N, "residual must be [", n, ", ", N, "]");
  const ssd::Output target{out.mutable_data_ptr<float>(), N, vector_or_null(bias, "bias", N), add, W.scale()};
  if (n == 0) return;
  with_weights(W.dtype(), "weight", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    static thread_local ssd::Scratch scratch;
    auto* shared = reinterpret_cast<ssd::Node<T>*>(scratch.get<char>(ssd::prepared_bytes<T>(n, K)));
    ssd::with_team(N * K * n >= ssd::kSerialWork, [&](ssd::Member& member) {
      ssd::multiply<T>(member, W.packed<T>(), ssd::prepare<T>(member, n, K, shared, fill), n, target, {});
    });
  });
}

auto copy_rows(const Tensor& x) {
  const float* data = x.const_data_ptr<float>();
  const int64_t K = x.size(1);
  return [=](int64_t i, float* row) { std::memcpy(row, data + i * K, K * sizeof(float)); };
}

Tensor norm_linear(const Tensor& x, const Tensor& norm_w, double eps, const Matrix& W, const OptTensor& bias) {
  check_float(x, "x", 2);
  const int64_t K = x.size(1);
  const float* data = x.const_data_ptr<float>();
  const float* weight = vector_or_null(norm_w, "norm_w", K);
  Tensor out = new_floats({x.size(0), W.rows()});
  product(W, bias, x.size(0), K, out, false, [=](int64_t i, float* row) {
    ssd::rms_norm(data + i * K, weight, static_cast<float>(eps), K, row);
  });
  return out;
}

Tensor linear(const Tensor& x, const Matrix& W, const OptTensor& bias) {
  check_float(x, "x", 2);
  Tensor out = new_floats({x.size(0), W.rows()});
  product(W, bias, x.size(0), x.size(1), out, false, copy_rows(x));
  return out;
}

void linear_add_(const Tensor& residual, const Tensor& x, const Matrix& W, const OptTensor& bias) {
  check_float(residual, "residual", 2);
  check_float(x, "x", 2);
  product(W, bias, x.size(0), x.size(1), residual, true, copy_rows(x));
}

void swiglu_linear_add_(const Tensor& residual, const Tensor& gate_up, const Matrix& W, const OptTensor& bias) {
  check_float(residual, "residual", 2);
  check_float(gate_up, "gate_up", 2);
  const int64_t I = gate_up.size(1) / 2;
  TORCH_CHECK(gate_up.size(1) == 2 * I, "gate_up must have an even number of columns");
  const float* data = gate_up.const_data_ptr<float>();
  product(W, bias, gate_up.size(0), I, residual, true, [=](int64_t i, float* row) {
    ssd::swiglu(data + i * 2 * I, data + i * 2 * I + I, I, row);
  });
}

// Of every row of logits [n, N] the largest and its index.
std::tuple<Tensor, Tensor> top(const Tensor& logits) {
  check_float(logits, "logits", 2);
  const int64_t n = logits.size(0), N = logits.size(1);
  TORCH_CHECK(N > 0, "logits must have columns");
  Tensor best = new_floats({n}), ids = at::detail::empty_cpu({n}, at::kLong);
  const float* rows = logits.const_data_ptr<float>();
  float* most = best.mutable_data_ptr<float>();
  int64_t* id = ids.mutable_data_ptr<int64_t>();
  ssd::share_out(n, n * N >= ssd::kSerialWork, [&](int64_t i) {
    id[i] = ssd::top_of(rows + i * N, N);
    most[i] = rows[i * N + id[i]];
  });
  return {best, ids};
}

// Of every row of logits [n, N] the sum of e^(x - best), best [n].
Tensor mass(const Tensor& logits, const Tensor& best) {
  check_float(logits, "logits", 2);
  const int64_t n = logits.size(0), N = logits.size(1);
  const float *rows = logits.const_data_ptr<float>(), *most = vector_or_null(best, "best", n);
  Tensor sums = new_floats({n});
  float* to = sums.mutable_data_ptr<float>();
  ssd::share_out(n, n * N >= ssd::kSerialWork, [&](int64_t i) { to[i] = ssd::mass_of(rows + i * N, N, most[i]); });
  return sums;
}

void check_cache(const Tensor& keys, const Tensor& values, int64_t D) {
  for (const Tensor* t : {&keys, &values})
    TORCH_CHECK(t->device().is_cpu() && t->dim() == 3 && t->size(2) == D && t->stride(2) == 1 && t->stride(1) == D,
                "keys and values must be CPU tensors [Hkv, cap, ", D, "] with rows ", D, " elements apart");
  TORCH_CHECK(keys.scalar_type() == values.scalar_type() && keys.size(0) == values.size(0) &&
                  keys.size(1) == values.size(1),
              "keys and values must have one shape and dtype");
}

// The cache of a block; `check_cache` comes first.
template <class T>
ssd::CacheRows<T> cache_rows(const Tensor& keys, const Tensor& values) {
  return {keys.mutable_data_ptr<T>(), values.mutable_data_ptr<T>(), keys.stride(0), values.stride(0)};
}

const uint8_t* mask_or_null(const OptTensor& mask, int64_t n) {
  if (!mask.has_value() || !mask->defined()) return nullptr;
  TORCH_CHECK(mask->device().is_cpu() && (mask->scalar_type() == at::kBool || mask->scalar_type() == at::kByte) &&
                  mask->is_contiguous() && mask->dim() == 2 && mask->size(0) == n && mask->size(1) == n,
              "mask must be a contiguous bool or uint8 [n, n] CPU tensor");
  return static_cast<const uint8_t*>(mask->const_data_ptr());
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
  const ssd::Heads heads{Hq, Hkv, D, static_cast<float>(eps), vector_or_null(q_norm, "q_norm", D),
                         vector_or_null(k_norm, "k_norm", D)};
  Tensor q = new_floats({n, Hq, D});
  with_type(keys.scalar_type(), "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ssd::with_team(qkv.numel() >= ssd::kSerialFill, [&](ssd::Member& member) {
      ssd::rope_append<T>(member, heads, qkv.const_data_ptr<float>(), cos.const_data_ptr<float>(),
                          sin.const_data_ptr<float>(), n, cache_rows<T>(keys, values), row, q.mutable_data_ptr<float>());
    });
  });
  return q;
}

// Prefix rows [first, second) that no node of a call sees.
ssd::RowRange unread_rows(const std::pair<int64_t, int64_t>& unread, int64_t prefix_len) {
  const auto [begin, end] = unread;
  TORCH_CHECK(0 <= begin && begin <= end && end <= prefix_len, "unread rows [", begin, ", ", end,
              ") must be a range within the ", prefix_len, " rows of the prefix");
  return {begin, end};
}

Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values, int64_t prefix_len, int64_t row,
              const OptTensor& mask, const std::pair<int64_t, int64_t>& unread) {
  check_float(q, "q", 3);
  const int64_t n = q.size(0), Hq = q.size(1), D = q.size(2);
  check_cache(keys, values, D);
  const int64_t Hkv = keys.size(0);
  TORCH_CHECK(Hkv > 0 && Hq % Hkv == 0, "the query heads must be a multiple of the kv heads");
  TORCH_CHECK(0 <= prefix_len && prefix_len <= row && row + n <= keys.size(1),
              "0 <= prefix_len <= row and row + n <= cache rows must hold");
  const uint8_t* m = mask_or_null(mask, n);
  const ssd::RowRange left_out = unread_rows(unread, prefix_len);
  const ssd::Heads heads{Hq, Hkv, D, 0.0f, nullptr, nullptr};
  Tensor out = new_floats({n, Hq * D});
  if (n == 0) return out;
  with_type(keys.scalar_type(), "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    static thread_local ssd::Scratch scratch;
    const auto a = ssd::attention_of(heads, q.const_data_ptr<float>(), cache_rows<T>(keys, values), prefix_len, row, m,
                                     n, left_out);
    float* states = scratch.get<float>(ssd::states_size(a));
    ssd::with_team(a.rows_read() * q.numel() >= ssd::kSerialWork, [&](ssd::Member& member) {
      ssd::attend<T>(member, a, states, out.mutable_data_ptr<float>());
    });
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
  with_type(keys.scalar_type(), "keys", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const ssd::Attention<T> a{q.const_data_ptr<float>(), keys.const_data_ptr<T>(), values.const_data_ptr<T>(),
                              keys.stride(0), values.stride(0), own_keys.const_data_ptr<T>(),
                              own_values.const_data_ptr<T>(), n * D, n * D, nullptr, 0, n, Hq / Hkv, Hkv, D,
                              prefix_len, 0, n / branches, 1.0f / std::sqrt(static_cast<float>(D)), {}};
    ssd::with_team(true, [&](ssd::Member& member) {
      ssd::attend_branches<T>(member, a, n / branches, out.mutable_data_ptr<float>());
    });
  });
  return out;
}

// All blocks of a model; runs passes.
class Blocks {
 public:
  struct Weights {
    Tensor attn_norm;
    Matrix qkv;
    OptTensor qkv_bias, q_norm, k_norm;
    Matrix out;
    OptTensor out_bias;
    Tensor mlp_norm;
    Matrix gate_up;
    OptTensor gate_up_bias;
    Matrix down;
    OptTensor down_bias;
  };

  Blocks(int64_t q_heads, int64_t kv_heads, int64_t head_dim, double eps)
      : heads_{q_heads, kv_heads, head_dim, static_cast<float>(eps), nullptr, nullptr} {
    TORCH_CHECK(kv_heads > 0 && q_heads % kv_heads == 0, "the query heads must be a multiple of the kv heads");
    TORCH_CHECK(head_dim % 2 == 0, "heads must have an even number of dimensions");
  }

  void append(Tensor attn_norm, Matrix qkv, OptTensor qkv_bias, OptTensor q_norm, OptTensor k_norm, Matrix out,
              OptTensor out_bias, Tensor mlp_norm, Matrix gate_up, OptTensor gate_up_bias, Matrix down,
              OptTensor down_bias) {
    const int64_t d = qkv.width(), columns = heads_.Hq * heads_.D;
    TORCH_CHECK(qkv.rows() == heads_.columns() && out.width() == columns && out.rows() == d && gate_up.width() == d &&
                    gate_up.rows() == 2 * down.width() && down.rows() == d,
                "the matrices of a block do not fit together");
    if (!blocks_.empty())
      TORCH_CHECK(d == blocks_[0].qkv.width() && down.width() == blocks_[0].down.width() &&
                      qkv.dtype() == blocks_[0].qkv.dtype(),
                  "blocks must have one size and dtype");
    for (const Matrix* one : {&out, &gate_up, &down})
      TORCH_CHECK(one->dtype() == qkv.dtype(), "the matrices of a block must have one dtype");
    vector_or_null(attn_norm, "attn_norm", d);
    vector_or_null(qkv_bias, "qkv_bias", qkv.rows());
    vector_or_null(q_norm, "q_norm", heads_.D);
    vector_or_null(k_norm, "k_norm", heads_.D);
    vector_or_null(out_bias, "out_bias", d);
    vector_or_null(mlp_norm, "mlp_norm", d);
    vector_or_null(gate_up_bias, "gate_up_bias", gate_up.rows());
    vector_or_null(down_bias, "down_bias", d);
    blocks_.push_back({attn_norm, qkv, qkv_bias, q_norm, k_norm, out, out_bias, mlp_norm, gate_up, gate_up_bias, down,
                       down_bias});
    with_type(qkv.dtype(), "weights", [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      std::get<std::vector<ssd::Block<T>>>(read_[0]).push_back(of<T>(blocks_.back()));
    });
  }

  // Gives every block, in their order, a copy of its matrices in 8 or in 4 bits.
  void append_rounded(int64_t bits, Matrix qkv, Matrix out, Matrix gate_up, Matrix down) {
    auto& copies = rounded_[bits];
    TORCH_CHECK(copies.size() < blocks_.size(), "rounded weights of more blocks than there are");
    const Weights& block = blocks_[copies.size()];
    for (const auto& [copy, of] : {std::pair{&qkv, &block.qkv}, {&out, &block.out}, {&gate_up, &block.gate_up},
                                   {&down, &block.down}})
      TORCH_CHECK(copy->dtype() == (bits == 8 ? at::kChar : at::kByte) && copy->rows() == of->rows() &&
                      copy->width() == of->width(),
                  "a copy must have ", bits, " bits and the size of its matrix");
    copies.push_back({qkv, out, gate_up, down});
    with_type(block.qkv.dtype(), "weights", [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      ssd::Block<T> read = of<T>(block);
      ssd::Linear<T>* linears[] = {&read.qkv, &read.out, &read.gate_up, &read.down};
      for (int i = 0; i < 4; i++) {
        const Matrix& copy = copies.back()[i];
        if (bits == 8)
          linears[i]->W8 = copy.packed<int8_t>(), linears[i]->scale = copy.scale();
        else
          linears[i]->W4 = copy.packed<ssd::Tile4>();
      }
      std::get<std::vector<ssd::Block<T>>>(read_[bits]).push_back(read);
    });
  }

  // Runs sublayers over streams [n, d], in place, each with weights of the given bits (0, or no bits: as appended); the
  // stream at each tap is copied to kept [taps, n, d].
  void run(const Tensor& hidden, const std::vector<int64_t>& sublayers, int64_t prefix_len, int64_t row,
           const Tensor& cos, const Tensor& sin, const OptTensor& mask, const std::vector<int64_t>& taps,
           const OptTensor& kept, const std::vector<Tensor>& keys, const std::vector<Tensor>& values,
           const std::pair<int64_t, int64_t>& unread, const std::vector<int64_t>& bits) const {
    check_float(hidden, "hidden", 2);
    check_float(cos, "cos", 2);
    check_float(sin, "sin", 2);
    const int64_t n = hidden.size(0), d = hidden.size(1), L = blocks_.size(), D = heads_.D;
    TORCH_CHECK(L > 0 && d == blocks_[0].qkv.width(), "streams must have the width of the blocks");
    TORCH_CHECK(cos.size(0) == n && sin.size(0) == n && cos.size(1) == D && sin.size(1) == D, "cos, sin must be [n, D]");
    TORCH_CHECK(static_cast<int64_t>(keys.size()) == L && static_cast<int64_t>(values.size()) == L,
                "there must be keys and values of every block");
    TORCH_CHECK(0 <= prefix_len && prefix_len <= row, "0 <= prefix_len <= row must hold");
    const ssd::RowRange left_out = unread_rows(unread, prefix_len);
    TORCH_CHECK(taps.empty() || (kept.has_value() && kept->defined()), "taps need a place to be kept");
    float* places = nullptr;
    if (!taps.empty()) {
      check_float(*kept, "kept", 3);
      TORCH_CHECK(kept->size(0) == static_cast<int64_t>(taps.size()) && kept->size(1) == n && kept->size(2) == d,
                  "kept must be [taps, n, d]");
      places = kept->mutable_data_ptr<float>();
    }
    const uint8_t* visible = mask_or_null(mask, n);
    TORCH_CHECK(bits.empty() || bits.size() == sublayers.size(), "every sublayer must have bits");
    for (const int64_t b : bits)
      TORCH_CHECK(b == 0 || (rounded_.count(b) && rounded_.at(b).size() == blocks_.size()), "append_rounded comes first");
    for (const int64_t i : sublayers) {
      TORCH_CHECK(0 <= i && i < 2 * L, "sublayer ", i, " is not one of ", 2 * L);
      if (i % 2) continue;
      const Tensor &k = keys[i / 2], &v = values[i / 2];
      check_cache(k, v, D);
      TORCH_CHECK(k.size(0) == heads_.Hkv && row + n <= k.size(1) && k.scalar_type() == blocks_[0].qkv.dtype(),
                  "cache rows [row, row + n) must exist, in the dtype of the weights");
    }
    std::vector<int64_t> before(taps.size());
    for (size_t t = 0; t < taps.size(); t++)
      before[t] = std::lower_bound(sublayers.begin(), sublayers.end(), taps[t]) - sublayers.begin();
    if (n == 0) return;
    with_type(blocks_[0].qkv.dtype(), "weights", [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      std::vector<ssd::Sublayer<T>> steps;
      steps.reserve(sublayers.size());
      for (size_t at = 0; at < sublayers.size(); at++) {
        const int64_t i = sublayers[at];
        const auto& read = std::get<std::vector<ssd::Block<T>>>(read_.at(bits.empty() ? 0 : bits[at]));
        steps.push_back({&read[i / 2], i % 2 == 1,
                         i % 2 ? ssd::CacheRows<T>{} : cache_rows<T>(keys[i / 2], values[i / 2])});
      }
      ssd::run_pass<T>({steps, before, hidden.mutable_data_ptr<float>(), places, cos.const_data_ptr<float>(),
                        sin.const_data_ptr<float>(), visible, n, d, prefix_len, row, left_out, heads_,
                        blocks_[0].down.width()});
    });
  }

 private:
  static const float* pointer(const OptTensor& t) {
    return t.has_value() && t->defined() ? t->const_data_ptr<float>() : nullptr;
  }
  template <class T>
  static ssd::Block<T> of(const Weights& w) {
    return {w.attn_norm.const_data_ptr<float>(), {w.qkv.packed<T>(), pointer(w.qkv_bias)}, pointer(w.q_norm),
            pointer(w.k_norm), {w.out.packed<T>(), pointer(w.out_bias)}, w.mlp_norm.const_data_ptr<float>(),
            {w.gate_up.packed<T>(), pointer(w.gate_up_bias)}, {w.down.packed<T>(), pointer(w.down_bias)}};
  }

  ssd::Heads heads_;
  std::vector<Weights> blocks_;  // own the weights
  std::map<int64_t, std::vector<std::array<Matrix, 4>>> rounded_;  // own their copies, by bits
  // The blocks as passes read them, by bits (0: as appended); only the vector of the weights' dtype is used.
  std::map<int64_t,
           std::tuple<std::vector<ssd::Block<float>>, std::vector<ssd::Block<bf16>>, std::vector<ssd::Block<f16>>>>
      read_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using py::arg;
  const auto no_bias = arg("bias") = py::none();
  const auto all_read = arg("unread") = std::pair<int64_t, int64_t>(0, 0);
  const py::call_guard<py::gil_scoped_release> released;
  TORCH_CHECK(ssd::tiles_given(), "the system does not let this process use the CPU's matrix unit; hardware.isa=avx512_bf16 does without");
  py::class_<Matrix>(m, "Matrix")
      .def(py::init<const Tensor&, OptTensor, const OptTensor&, int64_t>(), arg("W"), arg("scale") = py::none(),
           arg("minimum") = py::none(), arg("width") = 0)
      .def("__getitem__",
           [](const Matrix& W, const py::slice& rows) {
             size_t begin, end, step, count;
             if (!rows.compute(W.rows(), &begin, &end, &step, &count)) throw py::error_already_set();
             TORCH_CHECK(step == 1, "rows must be side by side");
             return W.slice(begin, end);
           })
      .def("floats", &Matrix::floats, released, arg("ids"))
      .def("select", &Matrix::select, released, arg("ids"))
      .def("data_ptr", &Matrix::address)
      .def_property_readonly("nbytes", &Matrix::nbytes)
      .def_property_readonly("shape", [](const Matrix& W) { return py::make_tuple(W.rows(), W.width()); })
      .def_property_readonly("device", [](const Matrix&) { return at::Device(at::kCPU); });
  py::class_<Blocks>(m, "Blocks")
      .def(py::init<int64_t, int64_t, int64_t, double>(), arg("q_heads"), arg("kv_heads"), arg("head_dim"), arg("eps"))
      .def("append", &Blocks::append, arg("attn_norm"), arg("qkv"), arg("qkv_bias"), arg("q_norm"), arg("k_norm"),
           arg("out"), arg("out_bias"), arg("mlp_norm"), arg("gate_up"), arg("gate_up_bias"), arg("down"),
           arg("down_bias"))
      .def("append_rounded", &Blocks::append_rounded, arg("bits"), arg("qkv"), arg("out"), arg("gate_up"), arg("down"))
      .def("run", &Blocks::run, released, arg("hidden"), arg("sublayers"), arg("prefix_len"), arg("row"), arg("cos"),
           arg("sin"), arg("mask"), arg("taps"), arg("kept"), arg("keys"), arg("values"), all_read,
           arg("bits") = std::vector<int64_t>());
  m.def("norm_linear", &norm_linear, released, arg("x"), arg("norm_w"), arg("eps"), arg("W"), no_bias);
  m.def("linear", &linear, released, arg("x"), arg("W"), no_bias);
  m.def("linear_add_", &linear_add_, released, arg("residual"), arg("x"), arg("W"), no_bias);
  m.def("swiglu_linear_add_", &swiglu_linear_add_, released, arg("residual"), arg("gate_up"), arg("W"),
        no_bias);
  m.def("top", &top, released, arg("logits"));
  m.def("mass", &mass, released, arg("logits"), arg("best"));
  m.def("rope_append", &rope_append, released, arg("qkv"), arg("cos"), arg("sin"), arg("q_norm"), arg("k_norm"),
        arg("eps"), arg("keys"), arg("values"), arg("row"));
  m.def("attend", &attend, released, arg("q"), arg("keys"), arg("values"), arg("prefix_len"), arg("row"),
        arg("mask") = py::none(), all_read);
  m.def("attend_branches", &attend_branches, released, arg("q"), arg("keys"), arg("values"), arg("prefix_len"),
        arg("own_keys"), arg("own_values"), arg("branches"));
  m.def("read_speeds", &ssd::read_speeds, released, arg("bytes"), arg("huge"), arg("rounds"));
  m.def("product_speeds", &ssd::product_speeds, released, arg("steps"), arg("rounds"));
}
