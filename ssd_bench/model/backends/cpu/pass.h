// A pass: one team of threads runs one sublayer after the other over the nodes, and is kept until the end of the pass.
#pragma once
#include "attend.h"
#include "linear.h"

namespace ssd {

constexpr int64_t kAloneWork = 1 << 16;  // multiply-adds of a sublayer below which one thread is faster than a team

// Rotates a head x [D], after an optional RMS norm, into out. rotate_half: dimensions d and d + D / 2 are one pair.
inline void norm_and_rotate(const float* x, const float* norm, float eps, const float* cos, const float* sin, int64_t D,
                            float* tmp, float* out) {
  if (norm) {
    rms_norm(x, norm, eps, D, tmp);
    x = tmp;
  }
  const int64_t half = D / 2;
  int64_t d = 0;
  for (; d + VL <= half; d += VL) {
    const vf a = load(x + d), b = load(x + d + half);
    store(out + d, a * load(cos + d) - b * load(sin + d));
    store(out + d + half, b * load(cos + d + half) + a * load(sin + d + half));
  }
  for (; d < half; d++) {
    const float a = x[d], b = x[d + half];
    out[d] = a * cos[d] - b * sin[d];
    out[d + half] = b * cos[d + half] + a * sin[d + half];
  }
}

struct Heads {
  int64_t Hq, Hkv, D;
  float eps;
  const float *q_norm, *k_norm;  // or null

  int64_t columns() const { return (Hq + 2 * Hkv) * D; }
};

// The cache of one block: k and v are [Hkv, rows, D], with D elements from one row of a head to the next.
template <class T>
struct CacheRows {
  T *k, *v;
  int64_t k_head, v_head;  // elements from one head to the next
};

// Rotates node i's queries into q [n, Hq, D] and writes its rotated key and its value to scratch row `row` + i.
template <class T>
void rope_append(Member& member, const Heads& heads, const float* qkv, const float* cos, const float* sin, int64_t n,
                 const CacheRows<T>& rows, int64_t row, float* q) {
  member.each(n, [&](int64_t i) {
    static thread_local Scratch scratch;
    const int64_t D = heads.D;
    float *tmp = scratch.get<float>(2 * D), *rotated = tmp + D;
    const float *x = qkv + i * heads.columns(), *c = cos + i * D, *s = sin + i * D;
    for (int64_t h = 0; h < heads.Hq; h++, x += D)
      norm_and_rotate(x, heads.q_norm, heads.eps, c, s, D, tmp, q + (i * heads.Hq + h) * D);
    for (int64_t h = 0; h < heads.Hkv; h++, x += D) {
      norm_and_rotate(x, heads.k_norm, heads.eps, c, s, D, tmp, rotated);
      convert(rotated, D, rows.k + h * rows.k_head + (row + i) * D);
    }
    for (int64_t h = 0; h < heads.Hkv; h++, x += D) convert(x, D, rows.v + h * rows.v_head + (row + i) * D);
  });
}

// Attention of n nodes whose keys and values are in cache rows row, row + 1, ...
template <class T>
Attention<T> attention_of(const Heads& heads, const float* q, const CacheRows<T>& rows, int64_t prefix, int64_t row,
                          const uint8_t* mask, int64_t n, RowRange unread) {
  return {q, rows.k, rows.v, rows.k_head, rows.v_head, rows.k + row * heads.D, rows.v + row * heads.D, rows.k_head,
          rows.v_head, mask, n, n, heads.Hq / heads.Hkv, heads.Hkv, heads.D, prefix, 0, n,
          1.0f / std::sqrt(static_cast<float>(heads.D)), unread};
}

// A product's weights: W, or a rounded copy that is read instead: W8 with the scale of every row, or W4.
template <class T>
struct Linear {
  Packed<T> W;
  const float* bias;
  Packed<int8_t> W8 = {};
  const float* scale = nullptr;
  Packed<Tile4> W4 = {};

  // Calls f with the weights that are read.
  template <class F>
  auto with_weights(const F& f) const {
    return W4.data ? f(W4) : W8.data ? f(W8) : f(W);
  }
};

template <class T>
struct Block {
  const float* attn_norm;
  Linear<T> qkv;
  const float *q_norm, *k_norm;
  Linear<T> out;
  const float* mlp_norm;
  Linear<T> gate_up, down;

  const Linear<T>& first(bool mlp) const { return mlp ? gate_up : qkv; }
};

template <class T>
struct Sublayer {
  const Block<T>* block;
  bool mlp;
  CacheRows<T> rows;  // the block's cache; unused by an MLP
};

// Arguments of a pass: streams [n, d], rotary tables [n, D], tree mask [n, n] or null; tapped streams [taps, n, d].
template <class T>
struct Passed {
  const std::vector<Sublayer<T>>& sublayers;
  const std::vector<int64_t>& taps;  // number of the given sublayers that run before each tap
  float *hidden, *kept;
  const float *cos, *sin;
  const uint8_t* mask;
  int64_t n, width, prefix, row;
  RowRange unread;  // rows of the prefix that no attention reads
  Heads heads;
  int64_t intermediate;

  CacheRows<T> rows() const {
    for (const auto& sublayer : sublayers)
      if (!sublayer.mlp) return sublayer.rows;
    return {};
  }
  bool parallel() const {
    const int64_t read = prefix - unread.count() + n;
    return n * width * std::max(heads.columns(), 3 * intermediate) + n * read * heads.Hq * heads.D >= kAloneWork;
  }
};

template <class T>
void run_pass(const Passed<T>& pass) {
  static thread_local Scratch of_x, of_wide, of_q, of_attended, of_states;
  const int64_t n = pass.n, d = pass.width, I = pass.intermediate, columns = pass.heads.Hq * pass.heads.D;
  const int64_t longest = std::max({d, I, columns});
  // operands of products with T or with rounded weights, one after the other
  char* const x =
      of_x.get<char>(std::max({prepared_bytes<T>(n, longest), prepared_bytes<int8_t>(n, longest),
                               prepared_bytes<Tile4>(n, longest)}));
  float* const wide = of_wide.get<float>(n * std::max(pass.heads.columns(), 2 * I));
  float *const q = of_q.get<float>(n * columns), *const attended = of_attended.get<float>(n * columns);
  const auto any = attention_of(pass.heads, q, pass.rows(), pass.prefix, pass.row, pass.mask, n, pass.unread);
  float* const states = of_states.get<float>(states_size(any));
  with_team(pass.parallel(), [&](Member& member) {
    size_t tap = 0;
    const auto keep = [&](size_t before) {
      for (; tap < pass.taps.size() && pass.taps[tap] == static_cast<int64_t>(before); tap++)
        for (int64_t i = Member::begin(n, member.id, member.size); i < Member::begin(n, member.id + 1, member.size); i++)
          std::memcpy(pass.kept + (tap * n + i) * d, pass.hidden + i * d, d * sizeof(float));
    };
    const auto start = [&](const Linear<T>& next) {
      return next.with_weights([&](const auto& W) {
        return Shares<typename std::decay_t<decltype(W)>::Type>{W, n, member.size}.start(member);
      });
    };
    // Multiplies rows of length K, which fill(node, row pointer) writes, by the weights of `linear`.
    const auto apply = [&](const Linear<T>& linear, int64_t K, const auto& fill, float* data, bool add, Next next) {
      const Output out{data, linear.W.rows, linear.bias, add, linear.scale};
      linear.with_weights([&](const auto& W) {
        using V = typename std::decay_t<decltype(W)>::Type;
        multiply<V>(member, W, prepare<V>(member, n, K, reinterpret_cast<Node<V>*>(x), fill), n, out, next);
      });
    };
    for (size_t at = 0; at < pass.sublayers.size(); at++) {
      keep(at);
      const auto& [block, mlp, rows] = pass.sublayers[at];
      const bool more = at + 1 < pass.sublayers.size();
      const Next after = more ? start(pass.sublayers[at + 1].block->first(pass.sublayers[at + 1].mlp)) : Next{};
      const Linear<T>&first = block->first(mlp), &second = mlp ? block->down : block->out;
      const float* norm = mlp ? block->mlp_norm : block->attn_norm;
      const auto normed = [&](int64_t i, float* to) { rms_norm(pass.hidden + i * d, norm, pass.heads.eps, d, to); };
      apply(first, d, normed, wide, false, start(second));
      if (mlp) {
        const auto activated = [&](int64_t i, float* to) { swiglu(wide + i * 2 * I, wide + i * 2 * I + I, I, to); };
        apply(second, I, activated, pass.hidden, true, after);
      } else {
        Heads heads = pass.heads;
        heads.q_norm = block->q_norm;
        heads.k_norm = block->k_norm;
        rope_append(member, heads, wide, pass.cos, pass.sin, n, rows, pass.row, q);
        attend(member, attention_of(heads, q, rows, pass.prefix, pass.row, pass.mask, n, pass.unread), states,
               attended);
        const auto copied = [&](int64_t i, float* to) {
          std::memcpy(to, attended + i * columns, columns * sizeof(float));
        };
        apply(second, columns, copied, pass.hidden, true, after);
      }
    }
    keep(pass.sublayers.size());
  });
}

}  // namespace ssd
