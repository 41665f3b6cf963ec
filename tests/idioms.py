"""Models as people write them: what is usual, what is awkward, and what no trainer could repeat.

Written by people who had no part in this trainer. `benchmarks/idioms.py` tries all of them, and
tests/fault/test_idioms.py some.
"""

import itertools
import math
import os
import random
import types
import uuid

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

ALL = {}


def register(name):
    def deco(f):
        assert name not in ALL, name
        ALL[name] = f
        return f

    return deco


def cls_register(name, **kw):
    """Registers a class whose constructor takes (classes, shape)."""

    def deco(c):
        assert name not in ALL, name
        ALL[name] = lambda classes, shape, c=c, kw=kw: c(classes, shape, **kw)
        return c

    return deco


def cbr(i, o, s=1, norm=nn.BatchNorm2d):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), norm(o), nn.ReLU(inplace=True))


def head(c, classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


# Tied autoencoder-ish MLP: F.linear with the transposed weight (every tied-AE blog post).
@cls_register("tied_transposed_weight")
class TiedTransposed(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        d = math.prod(shape)
        self.enc = nn.Linear(d, 48)
        self.dec_bias = nn.Parameter(torch.zeros(d))
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        x = x.flatten(1)
        h = torch.tanh(self.enc(x))
        rec = F.linear(h, self.enc.weight.t(), self.dec_bias)
        return self.fc(x - rec)


# Same Parameter object under two module names (GPT-2 wte / lm_head tying, HF transformers).
@cls_register("tied_embedding_lm_head")
class TiedLMHead(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.classes = classes
        self.wte = nn.Embedding(32, 24)
        self.wpe = nn.Embedding(math.prod(shape), 24)
        self.ln = nn.LayerNorm(24)
        self.mlp = nn.Linear(24, 24)
        self.lm_head = nn.Linear(24, 32, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x):
        t = (torch.sigmoid(x.flatten(1)) * 31).long()
        p = torch.arange(t.shape[1], device=x.device)
        h = self.wte(t) + self.wpe(p)
        h = self.ln(h + F.gelu(self.mlp(h))).mean(1)
        return self.lm_head(h)[:, : self.classes]


# One block object listed several times in a Sequential (ALBERT-like sharing, weight-tied ResNets).
@register("shared_block_in_sequential")
def shared_block_in_sequential(classes, shape):
    block = cbr(16, 16)
    return nn.Sequential(cbr(shape[0], 16), block, block, nn.MaxPool2d(2), block, head(16, classes))


# Universal-transformer style: one block with BN run T times, T changes with training calls.
@cls_register("shared_bn_block_random_depth")
class SharedRandomDepth(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.stem = cbr(shape[0], 16)
        self.block = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.fc = head(16, classes)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(random.randint(1, 4) if self.training else 3):
            x = x + self.block(x)
        return self.fc(x)


# timm / torchvision DenseNet "memory_efficient": checkpoint(use_reentrant=False) with BN inside.
@cls_register("checkpoint_nonreentrant_bn", reentrant=False)
# Old tutorials: reentrant checkpoint with BN inside; BN stats are updated twice a step.
@cls_register("checkpoint_reentrant_bn", reentrant=True)
class CkptBN(nn.Module):
    def __init__(self, classes, shape, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.stem = cbr(shape[0], 16)
        self.b1 = nn.Sequential(cbr(16, 16), nn.Dropout(0.1))
        self.b2 = cbr(16, 16)
        self.fc = head(16, classes)

    def forward(self, x):
        x = self.stem(x)
        if self.training:
            x = checkpoint(self.b1, x, use_reentrant=self.reentrant)
            x = checkpoint(self.b2, x, use_reentrant=self.reentrant)
        else:
            x = self.b2(self.b1(x))
        return self.fc(x)


# Checkpoint over ONE shared block several times (ALBERT with gradient checkpointing).
@cls_register("checkpoint_shared_block_nonreentrant", reentrant=False)
@cls_register("checkpoint_shared_block_reentrant", reentrant=True)
class CkptShared(nn.Module):
    def __init__(self, classes, shape, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Conv2d(shape[0], 16, 3, padding=1)
        self.block = nn.Sequential(
            nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.Dropout2d(0.1)
        )
        self.fc = head(16, classes)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(3):
            x = x + checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.fc(x)


# SN-GAN discriminator style with the old torch.nn.utils.spectral_norm (u, v buffers by power iteration).
@register("spectral_norm_old")
def spectral_norm_old(classes, shape):
    sn = torch.nn.utils.spectral_norm
    return nn.Sequential(
        sn(nn.Conv2d(shape[0], 16, 3, padding=1)),
        nn.LeakyReLU(0.1, inplace=True),
        sn(nn.Conv2d(16, 24, 4, 2, 1)),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Flatten(),
        sn(nn.Linear(24 * (shape[1] // 2) * (shape[2] // 2), classes)),
    )


# New-style parametrizations.spectral_norm with 2 power iterations (recent GAN code).
@register("spectral_norm_parametrized")
def spectral_norm_parametrized(classes, shape):
    sn = parametrizations.spectral_norm
    return nn.Sequential(
        sn(nn.Conv2d(shape[0], 16, 3, padding=1), n_power_iterations=2),
        nn.ReLU(),
        sn(nn.Conv2d(16, 16, 3, 2, 1)),
        nn.ReLU(),
        head(16, classes),
    )


# weight_norm old style (WaveNet / TCN repos: locuslab/TCN).
@register("weight_norm_old")
def weight_norm_old(classes, shape):
    wn = torch.nn.utils.weight_norm

    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1 = wn(nn.Conv1d(shape[0] * shape[1], 24, 3, padding=2))
            self.c2 = wn(nn.Conv1d(24, 24, 3, padding=4, dilation=2))
            self.drop = nn.Dropout(0.1)
            self.fc = nn.Linear(24, classes)

        def forward(self, x):
            x = x.flatten(1, 2)
            x = self.drop(F.relu(self.c1(x)[..., :-2].contiguous()))
            x = F.relu(self.c2(x)[..., :-4])
            return self.fc(x[..., -1])

    return TCN()


# parametrizations.weight_norm, with data-dependent init on first forward (Salimans & Kingma; Glow).
@cls_register("weight_norm_data_dependent_init")
class WNInit(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.l1 = parametrizations.weight_norm(nn.Linear(math.prod(shape), 64))
        self.l2 = parametrizations.weight_norm(nn.Linear(64, classes))
        self.initialized = False

    def forward(self, x):
        x = x.flatten(1)
        if not self.initialized:
            with torch.no_grad():
                y = self.l1(x)
                self.l1.bias.data.copy_(-y.mean(0))
                self.l1.parametrizations.weight.original0.data.div_(
                    y.std(0, unbiased=False)[:, None] + 1e-6
                )
            self.initialized = True
        return self.l2(F.elu(self.l1(x)))


# Max-norm constraint: renormalises weight.data in forward (EEGNet implementations, DeepConvNet).
@cls_register("maxnorm_renorm_weight_data_in_forward")
class EEGNetLike(nn.Module):
    class ConstrainedConv(nn.Conv2d):
        def forward(self, x):
            self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=1.0)
            return super().forward(x)

    def __init__(self, classes, shape):
        super().__init__()
        self.c = self.ConstrainedConv(shape[0], 16, (shape[1], 1), bias=False)
        self.bn = nn.BatchNorm2d(16, momentum=0.01, affine=True, eps=1e-3)
        self.fc = nn.Linear(16 * shape[2], classes)

    def forward(self, x):
        return self.fc(F.elu(self.bn(self.c(x))).flatten(1))


# Hand-written BN with buffers named moving_mean / moving_var, reassigned (d2l.ai "Dive into Deep Learning").
@cls_register("d2l_batchnorm_plain_attribute_stats")
class D2LNet(nn.Module):
    class BatchNorm(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(1, n, 1, 1))
            self.beta = nn.Parameter(torch.zeros(1, n, 1, 1))
            self.moving_mean = torch.zeros(1, n, 1, 1)  # not buffers at all
            self.moving_var = torch.ones(1, n, 1, 1)

        def forward(self, X):
            if self.moving_mean.device != X.device:
                self.moving_mean = self.moving_mean.to(X.device)
                self.moving_var = self.moving_var.to(X.device)
            if not torch.is_grad_enabled():
                X_hat = (X - self.moving_mean) / torch.sqrt(self.moving_var + 1e-5)
            else:
                mean = X.mean(dim=(0, 2, 3), keepdim=True)
                var = ((X - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
                X_hat = (X - mean) / torch.sqrt(var + 1e-5)
                self.moving_mean = 0.9 * self.moving_mean + 0.1 * mean.data
                self.moving_var = 0.9 * self.moving_var + 0.1 * var.data
            return self.gamma * X_hat + self.beta

    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(shape[0], 6, 3, padding=1),
            self.BatchNorm(6),
            nn.Sigmoid(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 3, padding=1),
            self.BatchNorm(16),
            nn.Sigmoid(),
            head(16, classes),
        )

    def forward(self, x):
        return self.net(x)


# Custom BN: other buffer names, cumulative average, reassignment of the registered buffer.
@cls_register("custom_bn_reassigned_buffers")
class CustomBN(nn.Module):
    class BN(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(n))
            self.shift = nn.Parameter(torch.zeros(n))
            self.register_buffer("mu_hat", torch.zeros(n))
            self.register_buffer("sq_hat", torch.ones(n))
            self.register_buffer("t", torch.tensor(0.0))

        def forward(self, x):
            if self.training:
                m, q = x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))
                self.t = self.t + 1
                a = 1 / self.t
                self.mu_hat = (1 - a) * self.mu_hat + a * m.detach()
                self.sq_hat = (1 - a) * self.sq_hat + a * q.detach()
            else:
                m, q = self.mu_hat, self.sq_hat
            v = (q - m * m).clamp_min(0) + 1e-5
            s = self.scale * v.rsqrt()
            return x * s[:, None, None] + (self.shift - m * s)[:, None, None]

    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(
            cbr(shape[0], 16, norm=self.BN), cbr(16, 24, 2, norm=self.BN), head(24, classes)
        )

    def forward(self, x):
        return self.net(x)


# Batch renormalisation (Ioffe 2017; ludvb/batchrenorm): rmax/dmax grow with num_batches_tracked.
@cls_register("batch_renorm_schedule_from_counter")
class BRNet(nn.Module):
    class BatchRenorm(nn.Module):
        def __init__(self, n, momentum=0.01):
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(n))
            self.register_buffer("running_std", torch.ones(n))
            self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))
            self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
            self.momentum = momentum

        @property
        def rmax(self):
            return (2 / 35000 * self.num_batches_tracked + 25 / 35).clamp_(1.0, 3.0)

        @property
        def dmax(self):
            return (5 / 20000 * self.num_batches_tracked - 25 / 20).clamp_(0.0, 5.0)

        def forward(self, x):
            x = x.transpose(1, -1)
            if self.training:
                dims = [i for i in range(x.dim() - 1)]
                bm = x.mean(dims)
                bs = x.std(dims, unbiased=False) + 1e-3
                r = (bs.detach() / self.running_std.view_as(bs)).clamp_(1 / self.rmax, self.rmax)
                d = (
                    (bm.detach() - self.running_mean.view_as(bm)) / self.running_std.view_as(bs)
                ).clamp_(-self.dmax, self.dmax)
                x = (x - bm) / bs * r + d
                self.running_mean += self.momentum * (bm.detach() - self.running_mean)
                self.running_std += self.momentum * (bs.detach() - self.running_std)
                self.num_batches_tracked += 1
            else:
                x = (x - self.running_mean) / self.running_std
            return (self.weight * x + self.bias).transpose(1, -1)

    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(
            cbr(shape[0], 16, norm=self.BatchRenorm),
            cbr(16, 16, 2, norm=self.BatchRenorm),
            head(16, classes),
        )

    def forward(self, x):
        return self.net(x)


# train() override keeping BNs in eval (mmdetection norm_eval, detection fine-tuning).
@cls_register("frozen_bn_by_train_override")
class NormEval(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.stem = cbr(shape[0], 16)
        self.body = cbr(16, 24, 2)
        self.fc = head(24, classes)
        for p in self.stem.parameters():
            p.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self  # some repos forget this

    def forward(self, x):
        return self.fc(self.body(self.stem(x)))


# .eval() and requires_grad_(False) in the constructor; later .train() undoes the eval (LPIPS-like wrappers).
@cls_register("eval_in_constructor")
class EvalInInit(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.feat = nn.Sequential(cbr(shape[0], 16), nn.Dropout(0.3)).eval().requires_grad_(False)
        self.fc = head(16, classes)

    def forward(self, x):
        with torch.no_grad():
            f = self.feat(x)
        return self.fc(f)


# BN momentum decayed through a Python attribute per call (PointNet++ bnm scheduler).
@cls_register("bn_momentum_python_schedule")
class BNMomentum(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(cbr(shape[0], 16), cbr(16, 16, 2), head(16, classes))
        self.it = 0

    def forward(self, x):
        if self.training:
            self.it += 1
            for m in self.modules():
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.momentum = max(0.5 * 0.5 ** (self.it // 4), 0.01)
        return self.net(x)


# Ghost batch norm: view into virtual batches (TabNet: dreamquark-ai/tabnet).
@cls_register("ghost_batch_norm_chunks")
class GBNNet(nn.Module):
    class GBN(nn.Module):
        def __init__(self, d, vbs=8):
            super().__init__()
            self.vbs, self.bn = vbs, nn.BatchNorm1d(d, momentum=0.01)

        def forward(self, x):
            return torch.cat(
                [self.bn(c) for c in x.chunk(int(np.ceil(x.shape[0] / self.vbs)), 0)], 0
            )

    def __init__(self, classes, shape):
        super().__init__()
        d = math.prod(shape)
        self.fc1, self.bn1 = nn.Linear(d, 2 * 32, bias=False), self.GBN(64)
        self.fc2, self.bn2 = nn.Linear(32, 64, bias=False), self.GBN(64)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        h = F.glu(self.bn1(self.fc1(x.flatten(1))))
        h = (h + F.glu(self.bn2(self.fc2(h)))) * math.sqrt(0.5)
        return self.out(h)


# FrozenBatchNorm2d with buffers only and _load_from_state_dict override (detectron2 / torchvision ops.misc).
@cls_register("frozen_batchnorm_buffers_versioned_load")
class FrozenBNNet(nn.Module):
    class FrozenBN(nn.Module):
        _version = 3

        def __init__(self, n):
            super().__init__()
            self.register_buffer("weight", torch.ones(n))
            self.register_buffer("bias", torch.zeros(n))
            self.register_buffer("running_mean", torch.zeros(n))
            self.register_buffer("running_var", torch.ones(n))
            self.eps = 1e-5

        def _load_from_state_dict(self, sd, prefix, meta, strict, missing, unexpected, errs):
            v = meta.get("version", None)
            sd.pop(prefix + "num_batches_tracked", None)
            if v is not None and v < 3:
                sd[prefix + "running_var"] = sd[prefix + "running_var"] - self.eps
            super()._load_from_state_dict(sd, prefix, meta, strict, missing, unexpected, errs)

        def forward(self, x):
            s = self.weight * (self.running_var + self.eps).rsqrt()
            return x * s.reshape(1, -1, 1, 1) + (self.bias - self.running_mean * s).reshape(
                1, -1, 1, 1
            )

    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(
            cbr(shape[0], 16, norm=self.FrozenBN),
            cbr(16, 16, norm=self.FrozenBN),
            head(16, classes),
        )

    def forward(self, x):
        return self.net(x)


# convert_sync_batchnorm in a constructor (every DDP script).
@register("sync_batchnorm")
def sync_bn(classes, shape):
    m = nn.Sequential(cbr(shape[0], 16), cbr(16, 16), head(16, classes))
    return nn.SyncBatchNorm.convert_sync_batchnorm(m)


# int64 buffer counter + Python-int counter + float64 tensor of losses, warm-up from the count.
@cls_register("warmup_by_call_counters")
class Warmup(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.register_buffer("step", torch.zeros(1, dtype=torch.long))
        self.n_calls = 0
        self.base = nn.Linear(math.prod(shape), classes)
        self.deep = nn.Sequential(
            nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, classes)
        )

    def forward(self, x):
        self.n_calls += 1
        x = x.flatten(1)
        if self.training:
            self.step += 1
        a = min(1.0, self.step.item() / 10)
        y = self.base(x)
        if self.n_calls > 2:
            y = y + a * self.deep(x)
        return y


# A zoo of buffer dtypes that change (masks, uint8 flags, complex phases, bf16 sums).
@cls_register("buffer_dtype_zoo")
class DtypeZoo(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(math.prod(shape), 32), nn.Linear(32, classes)
        self.register_buffer("seen", torch.zeros(32, dtype=torch.bool))
        self.register_buffer("flag", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("hits", torch.zeros(32, dtype=torch.int32))
        self.register_buffer("phase", torch.ones(32, dtype=torch.complex64))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.register_buffer("lowp", torch.zeros(32, dtype=torch.bfloat16))
        self.register_buffer("nothing", None)
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("scratch", torch.zeros(32), persistent=False)

    def forward(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        if self.training:
            with torch.no_grad():
                on = h > 0
                self.seen |= on.any(0)
                self.flag.fill_((int(self.flag) + 1) % 256)
                self.hits += on.sum(0).int()
                self.phase *= torch.polar(torch.ones(32, device=h.device), 0.1 * h.mean(0))
                self.total += h.double().sum()
                self.lowp.mul_(0.9).add_(h.mean(0).bfloat16(), alpha=0.1)
                self.scratch = h.mean(0)
        return self.fc2(h * self.phase.real + 0.01 * self.lowp.float() - 0.01 * self.scratch)


# EMA of features by in-place update, used for centring (DINO center).
@cls_register("dino_center_inplace_ema")
class DinoCenter(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.enc = nn.Sequential(cbr(shape[0], 16, 2), nn.Flatten())
        self.register_buffer("center", torch.zeros(1, classes))
        self.last_layer = torch.nn.utils.weight_norm(
            nn.Linear(16 * (shape[1] // 2) * (shape[2] // 2), classes, bias=False)
        )
        self.last_layer.weight_g.data.fill_(1)
        self.last_layer.weight_g.requires_grad = False

    @torch.no_grad()
    def update_center(self, out):
        c = torch.sum(out, dim=0, keepdim=True) / len(out)
        self.center = self.center * 0.9 + c * 0.1

    def forward(self, x):
        y = self.last_layer(F.normalize(self.enc(x), dim=-1))
        if self.training:
            self.update_center(y)
        return (y - self.center) / 0.1


# Running max for activation scaling, buffer in-place via torch.maximum(out=) (input normalisers).
@cls_register("running_max_buffer")
class RunningMax(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.register_buffer("amax", torch.full((shape[0], 1, 1), -float("inf")))
        self.net = nn.Sequential(cbr(shape[0], 16), head(16, classes))

    def forward(self, x):
        if self.training:
            torch.maximum(self.amax, x.detach().abs().amax((0, 2, 3)).view(-1, 1, 1), out=self.amax)
        s = torch.where(torch.isfinite(self.amax), self.amax, torch.ones_like(self.amax))
        return self.net(x / s.clamp_min(1e-3))


# MoCo-like queue with pointer; nearest features from the queue enter the logits (facebookresearch/moco, NNCLR).
@cls_register("moco_queue_with_pointer")
class MocoQueue(nn.Module):
    def __init__(self, classes, shape, K=48, dim=16):
        super().__init__()
        self.K = K
        self.enc = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, dim)
        )
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.fc = nn.Linear(dim + K, classes)

    @torch.no_grad()
    def _enqueue(self, keys):
        for k in keys:
            p = int(self.queue_ptr)
            self.queue[:, p] = k
            self.queue_ptr[0] = (p + 1) % self.K

    def forward(self, x):
        q = F.normalize(self.enc(x), dim=1)
        sim = q @ self.queue.clone().detach()
        if self.training:
            self._enqueue(q)
        return self.fc(torch.cat([q, sim], 1))


# VQ-VAE with EMA codebook: cluster_size / embed_avg, straight-through (rosinality/vq-vae-2-pytorch).
@cls_register("vq_ema_codebook")
class VQEMA(nn.Module):
    def __init__(self, classes, shape, dim=12, n=24):
        super().__init__()
        self.enc = nn.Conv2d(shape[0], dim, 2, 2)
        e = torch.randn(dim, n)
        self.register_buffer("embed", e)
        self.register_buffer("cluster_size", torch.zeros(n))
        self.register_buffer("embed_avg", e.clone())
        self.n, self.decay, self.eps = n, 0.9, 1e-5
        self.fc = nn.Linear(dim * (shape[1] // 2) * (shape[2] // 2), classes)

    def forward(self, x):
        z = self.enc(x).permute(0, 2, 3, 1)
        f = z.reshape(-1, z.shape[-1])
        dist = (
            f.pow(2).sum(1, keepdim=True)
            - 2 * f @ self.embed
            + self.embed.pow(2).sum(0, keepdim=True)
        )
        _, ind = (-dist).max(1)
        onehot = F.one_hot(ind, self.n).type(f.dtype)
        q = F.embedding(ind.view(*z.shape[:-1]), self.embed.transpose(0, 1))
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(f.detach().t() @ onehot, alpha=1 - self.decay)
            k = self.cluster_size.sum()
            cs = (self.cluster_size + self.eps) / (k + self.n * self.eps) * k
            self.embed.data.copy_(self.embed_avg / cs.unsqueeze(0))
        q = z + (q - z).detach()
        return self.fc(q.flatten(1))


# Stochastic depth with Python's random.random (early ResNet-SD ports): skipped layers get grad None.
@cls_register("stochastic_depth_python_random")
class SDPython(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.stem = cbr(shape[0], 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(cbr(16, 16), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
            for _ in range(3)
        )
        self.fc = head(16, classes)

    def forward(self, x):
        x = self.stem(x)
        for i, b in enumerate(self.blocks):
            p = 1 - 0.5 * (i + 1) / len(self.blocks)
            if self.training:
                if random.random() < p:
                    x = F.relu(x + b(x))
            else:
                x = F.relu(x + p * b(x))
        return self.fc(x)


# LayerDrop with numpy.random (fairseq layerdrop, HF wav2vec2 np.random.uniform).
@cls_register("layerdrop_numpy_random")
class LayerDrop(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.proj = nn.Linear(shape[0] * shape[2], 24)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    24, 4, 48, batch_first=True, norm_first=True, activation="gelu"
                )
                for _ in range(2)
            ]
        )
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        x = self.proj(x.permute(0, 2, 1, 3).flatten(2))
        for l in self.layers:
            if self.training and np.random.uniform(0, 1) < 0.3:
                continue
            x = l(x)
        return self.fc(x.mean(1))


# Own torch.Generator as attribute (reproducible-noise repos); deepcopy/pickle of it is fragile.
@cls_register("own_generator_attribute")
class OwnGen(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.gen = torch.Generator()
        self.gen.manual_seed(1234)
        self.fc1, self.fc2 = nn.Linear(math.prod(shape), 64), nn.Linear(64, classes)

    def forward(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        if self.training:
            m = torch.rand(h.shape, generator=self.gen).to(h.device) > 0.2
            h = h * m / 0.8
        return self.fc2(h)


_NOISE_GEN = torch.Generator().manual_seed(7)


_NP_RNG = np.random.default_rng(11)


_PY_RNG = random.Random(5)


# Three module-global generators (research scripts with `rng = np.random.default_rng(...)` at the top).
@cls_register("global_generators_torch_numpy_python")
class GlobalGen(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 16, 3, padding=1)
        self.fc = head(16, classes)

    def forward(self, x):
        if self.training:
            x = x + 0.1 * torch.randn(x.shape, generator=_NOISE_GEN).to(x.device)
            x = x * torch.from_numpy(
                _NP_RNG.uniform(0.9, 1.1, (x.shape[0], 1, 1, 1)).astype(np.float32)
            ).to(x.device)
            x = torch.roll(x, shifts=(_PY_RNG.randint(-1, 1), _PY_RNG.randint(-1, 1)), dims=(2, 3))
        return self.fc(F.relu(self.conv(x)))


# MC dropout: dropout active in eval (Gal & Ghahramani), several samples averaged.
@cls_register("mc_dropout_always_on")
class MCDrop(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(math.prod(shape), 64), nn.Linear(64, classes)

    def forward(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        n = 1 if self.training else 4
        return torch.stack([self.fc2(F.dropout(h, p=0.3)) for _ in range(n)]).mean(
            0
        )  # training=True by default


# Manifold mixup inside forward at a random layer, numpy Beta lambda (vikasverma1077/manifold_mixup).
@cls_register("manifold_mixup_randperm_numpy_beta")
class ManifoldMixup(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.layers = nn.ModuleList([cbr(shape[0], 16), cbr(16, 16), cbr(16, 24, 2)])
        self.fc = head(24, classes)

    def forward(self, x):
        at = np.random.randint(0, 3) if self.training else None
        lam = float(np.random.beta(2.0, 2.0)) if self.training else 1.0
        lam = max(lam, 1 - lam)
        for i, l in enumerate(self.layers):
            if i == at:
                x = lam * x + (1 - lam) * x[torch.randperm(x.size(0), device=x.device)]
            x = l(x)
        return self.fc(x)


# Top-1 mixture of experts with index_add; experts without tokens get no gradient; int64 load counters.
@cls_register("moe_top1_index_add")
class MoE(nn.Module):
    def __init__(self, classes, shape, E=6):
        super().__init__()
        self.proj = nn.Linear(shape[0] * shape[2], 24)
        self.gate = nn.Linear(24, E, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24)) for _ in range(E)]
        )
        self.register_buffer("load", torch.zeros(E, dtype=torch.int64))
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        t = self.proj(x.permute(0, 2, 1, 3).flatten(2))
        B, T, D = t.shape
        f = t.reshape(-1, D)
        p, e = self.gate(f).softmax(-1).max(-1)
        out = torch.zeros_like(f)
        for i, ex in enumerate(self.experts):
            idx = (e == i).nonzero(as_tuple=True)[0]
            if idx.numel() == 0:
                continue
            out.index_add_(0, idx, ex(f[idx]) * p[idx, None])
        if self.training:
            self.load += torch.bincount(e, minlength=len(self.experts))
        return self.fc((f + out).view(B, T, D).mean(1))


# Parameters never used and a whole unused torso (leftover HF pooler, DDP find_unused_parameters issues).
@cls_register("parameters_never_used")
class Unused(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.conv = cbr(shape[0], 16)
        self.aux_head = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 5))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.fc = head(16, classes)

    def forward(self, x):
        return self.fc(self.conv(x))


# Alternating heads every other call (GAN-like alternate branches, sandwich rule in slimmable nets).
@cls_register("alternating_branch_every_other_call")
class Alternate(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.a, self.b = cbr(shape[0], 16), cbr(shape[0], 16)
        self.fc = head(16, classes)
        self.flip = False

    def forward(self, x):
        if self.training:
            self.flip = not self.flip
            branch = self.a if self.flip else self.b
            return self.fc(branch(x))
        return self.fc((self.a(x) + self.b(x)) / 2)


# Lazy modules everywhere (PyTorch docs LazyMLP).
@register("lazy_conv_bn_linear")
def lazy(classes, shape):
    return nn.Sequential(
        nn.LazyConv2d(16, 3, padding=1),
        nn.LazyBatchNorm2d(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(32),
        nn.LazyBatchNorm1d(),
        nn.ReLU(),
        nn.LazyLinear(classes),
    )


# Linear built in forward on first call (beginner forum code); optimisers made before it miss the parameters.
@cls_register("built_on_first_forward")
class BuiltLate(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.classes = classes
        self.conv = cbr(shape[0], 16, 2)
        self.fc = None

    def forward(self, x):
        x = self.conv(x).flatten(1)
        if self.fc is None:
            self.fc = nn.Linear(x.shape[1], self.classes).to(x.device)
        return self.fc(x)


# Sparse-gradient embedding on patch tokens (word2vec style; needs SparseAdam/SGD).
@cls_register("embedding_sparse_tokens", sparse=True)
@cls_register("embedding_bag_padding_max_norm", sparse=False)
class PatchTokens(nn.Module):
    def __init__(self, classes, shape, sparse):
        super().__init__()
        self.emb = (
            nn.Embedding(256, 16, sparse=True)
            if sparse
            else nn.EmbeddingBag(
                256, 16, mode="sum", max_norm=1.0, scale_grad_by_freq=True, padding_idx=0
            )
        )
        self.register_buffer("pows", 2 ** torch.arange(4 * shape[0]).clamp_max(7), persistent=False)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        p = F.unfold(x, 2, stride=2).transpose(1, 2) > 0
        t = (p.long() * self.pows).sum(-1) % 256
        e = self.emb(t)
        return self.fc(e.mean(1) if e.dim() == 3 else e)


# Parameters in several dtypes, cast in forward (mixed-precision research code, signal processing).
@cls_register("params_float64_bf16_complex64_mixed")
class MixedParams(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        d = math.prod(shape)
        self.w64 = nn.Parameter(torch.randn(d, 32, dtype=torch.float64) / d**0.5)
        self.wbf = nn.Parameter((torch.randn(32, 32) / 6).bfloat16())
        self.wc = nn.Parameter(torch.randn(32, classes, dtype=torch.complex64) / 6)
        self.half_scale = nn.Parameter(torch.ones(32, dtype=torch.float16))

    def forward(self, x):
        h = (x.flatten(1).double() @ self.w64).relu()
        h = h + (h.bfloat16() @ self.wbf).double()
        h = h.float() * self.half_scale.float()
        return (h.to(torch.complex64) @ self.wc).abs()


# Scalar, zero-element, ParameterList/ParameterDict, None parameter, one-element tuple (ReZero, CLIP logit_scale).
@cls_register("scalar_empty_paramdict_none_params")
class OddParams(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        d = math.prod(shape)
        self.alphas = nn.ParameterList([torch.tensor(0.0) for _ in range(3)])  # ReZero, 0-d
        self.ws = nn.ParameterDict(
            {
                "w.in".replace(".", "_"): nn.Parameter(torch.randn(d, 32) / d**0.5),
                "hid": nn.Parameter(torch.randn(32, 32) / 6),
            }
        )
        self.empty = nn.Parameter(torch.empty(0, 32))
        self.register_parameter("absent", None)
        self.logit_scale = nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32))
        self.proto = nn.Parameter(torch.randn(classes, 32))

    def forward(self, x):
        h = x.flatten(1) @ self.ws["w_in"]
        for a in self.alphas:
            h = h + a * torch.tanh(h @ self.ws["hid"])
        h = h + torch.cat([self.empty, h.new_zeros(1, 32)]).sum(0)
        with torch.no_grad():
            self.logit_scale.clamp_(
                0, math.log(100)
            )  # in-place on a parameter in forward, as CLIP scripts
        return self.logit_scale.exp() * F.normalize(h, dim=1) @ F.normalize(self.proto, dim=1).t()


# Expanded parameter (stride 0 in storage, one value per channel) - wrapped by nn.Parameter directly.
@cls_register("expanded_stride0_parameter_frozen")
class ExpandedParam(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.temp = nn.Parameter(torch.full((1, 1), 0.5).expand(1, classes), requires_grad=False)
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.Softplus(), nn.Linear(32, classes)
        )

    def forward(self, x):
        return self.net(x) / self.temp


# Hooks on parameters: mask a pruned weight's gradient, clip, and count (lottery-ticket repos).
@cls_register("parameter_hooks_gradient_mask")
class ParamHooks(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(math.prod(shape), 64), nn.Linear(64, classes)
        self.register_buffer("mask", (torch.rand(64, math.prod(shape)) > 0.5).float())
        self.fc1.weight.data.mul_(self.mask)
        self.fc1.weight.register_hook(lambda g: g * self.mask)
        self.fc2.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
        self.n_grads = 0
        self.fc2.bias.register_post_accumulate_grad_hook(self._count)

    def _count(self, p):
        self.n_grads += 1

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


# tensor.register_hook scaling the gradient (MuZero pseudo-code) and gradient-statistics EMA set in backward.
@cls_register("tensor_hook_grad_scale_and_ema_in_backward")
class TensorHook(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.body, self.fc = cbr(shape[0], 16), head(16, classes)
        self.register_buffer("gnorm", torch.tensor(0.0))

    def _hook(self, g):
        n = g.norm()
        self.gnorm.mul_(0.9).add_(0.1 * n)
        return g * (self.gnorm / (n + 1e-12)).clamp(max=1.0)

    def forward(self, x):
        h = self.body(x)
        if h.requires_grad:
            h.register_hook(self._hook)
        return self.fc(h)


# Activation saved on self with graph attached (aux-loss style: self.attn, self.last_features).
@cls_register("stored_activations_with_graph")
class Stored(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.body, self.fc = cbr(shape[0], 16), head(16, classes)
        self.last_features, self.aux_loss = None, None

    def forward(self, x):
        self.last_features = self.body(x)
        self.aux_loss = self.last_features.pow(2).mean()
        return self.fc(self.last_features)


# torch.jit.script'ed submodule with a counter buffer.
class _ScriptedBlock(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.conv = nn.Conv2d(n, n, 3, padding=1)
        self.bn = nn.BatchNorm2d(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn(self.conv(x))
        if bool(y.mean() > 0):
            y = y * 0.9
        return torch.relu(y) + x


@register("torchscript_submodule")
def scripted(classes, shape):
    return nn.Sequential(cbr(shape[0], 16), torch.jit.script(_ScriptedBlock(16)), head(16, classes))


# Mean teacher deep-copied from the student, EMA in forward (mean-teacher, BYOL, data2vec).
@cls_register("mean_teacher_deepcopy_ema_in_forward")
class MeanTeacher(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.student = nn.Sequential(cbr(shape[0], 16), head(16, classes))
        self.teacher = torch.nn.modules.transformer.copy.deepcopy(
            self.student
        )  # plain copy.deepcopy
        self.teacher.requires_grad_(False)
        self.global_step = 0

    def forward(self, x):
        y = self.student(x)
        if self.training:
            self.global_step += 1
            a = min(1 - 1 / (self.global_step + 1), 0.99)
            with torch.no_grad():
                for s, t in zip(self.student.parameters(), self.teacher.parameters()):
                    t.data.mul_(a).add_(s.data, alpha=1 - a)
                z = self.teacher(x)
            return y + 0.1 * z
        return self.teacher(x)


# torch.optim.swa_utils.AveragedModel as a child, updated in forward, use_buffers (SWA tutorials).
@cls_register("swa_averaged_model_child")
class SWAChild(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(cbr(shape[0], 16), head(16, classes))
        self.swa = torch.optim.swa_utils.AveragedModel(self.net, use_buffers=True)
        for p in self.swa.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.swa.update_parameters(self.net)
            return self.net(x)
        return self.swa(x)


# LitEma: buffers with dots stripped, num_updates int buffer (CompVis/latent-diffusion).
@cls_register("litema_buffers_num_updates")
class LitEma(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.model = nn.Sequential(cbr(shape[0], 12), head(12, classes))
        self.m_name2s_name = {}
        self.register_buffer("decay", torch.tensor(0.99, dtype=torch.float32))
        self.register_buffer("num_updates", torch.tensor(0, dtype=torch.int))
        for n, p in self.model.named_parameters():
            s = n.replace(".", "")
            self.m_name2s_name[n] = s
            self.register_buffer(s, p.clone().detach().data)

    def forward(self, x):
        if self.training:
            decay = self.decay
            self.num_updates += 1
            decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
            with torch.no_grad():
                sh = dict(self.named_buffers())
                for n, p in self.model.named_parameters():
                    s = sh[self.m_name2s_name[n]]
                    s.sub_((1 - decay) * (s - p))
            return self.model(x)
        ema = {n: self.get_buffer(s) for n, s in self.m_name2s_name.items()}
        return torch.func.functional_call(self.model, ema, (x,))


# get_extra_state / set_extra_state carrying Python state (Transformer Engine, torchmetrics-like).
@cls_register("extra_state_python_history")
class ExtraState(nn.Module):
    class Scaler(nn.Module):
        def __init__(self):
            super().__init__()
            self.history, self.scale = [], 1.0

        def get_extra_state(self):
            return {"history": list(self.history), "scale": self.scale}

        def set_extra_state(self, s):
            self.history, self.scale = list(s["history"]), s["scale"]

        def forward(self, x):
            if self.training:
                self.history = (self.history + [x.detach().abs().max().item()])[-4:]
                self.scale = 1.0 / max(max(self.history), 1e-3)
            return x * self.scale

    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(cbr(shape[0], 16), self.Scaler(), head(16, classes))

    def forward(self, x):
        return self.net(x)


# state_dict overridden to hide the backbone and rename keys (LoRA/adapters repos), non-strict by default.
@cls_register("state_dict_override_hides_backbone")
class HiddenBackbone(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.backbone = cbr(shape[0], 16).requires_grad_(False)
        self.lora_a, self.lora_b = (
            nn.Parameter(torch.randn(16, 4) * 0.1),
            nn.Parameter(torch.zeros(4, 16)),
        )
        self.fc = head(16, classes)

    def state_dict(self, *args, **kwargs):
        sd = super().state_dict(*args, **kwargs)
        for k in [k for k in sd if ".backbone." in "." + k]:
            del sd[k]
        return sd

    def load_state_dict(self, sd, strict=True, assign=False):
        return super().load_state_dict(sd, strict=False, assign=assign)

    def forward(self, x):
        x = self.backbone(x)
        x = x + torch.einsum("bchw,cr,rd->bdhw", x, self.lora_a, self.lora_b)
        return self.fc(x)


GLOBAL_STEP = 0


GLOBAL_STATS = {"mean": None}


# Global variables changed in forward (competition notebooks).
@cls_register("global_variables_changed_in_forward")
class Globals(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.net = nn.Sequential(cbr(shape[0], 16), head(16, classes))

    def forward(self, x):
        global GLOBAL_STEP
        if self.training:
            GLOBAL_STEP += 1
            m = x.mean().item()
            GLOBAL_STATS["mean"] = (
                m if GLOBAL_STATS["mean"] is None else 0.9 * GLOBAL_STATS["mean"] + 0.1 * m
            )
        return self.net(x - (GLOBAL_STATS["mean"] or 0.0)) * (1.0 + 1.0 / (1 + GLOBAL_STEP))


# Closures and lambdas as layers; modules caught in closures, invisible to .parameters() unless listed.
@register("closures_partials_lambda_layers")
def closures(classes, shape):
    class Lambda(nn.Module):
        def __init__(self, f):
            super().__init__()
            self.f = f

        def forward(self, x):
            return self.f(x)

    partial = (
        torch.functools.partial
        if hasattr(torch, "functools")
        else (lambda f, **k: lambda x: f(x, **k))
    )
    state = {"n": 0}
    hidden = nn.Conv2d(shape[0], shape[0], 3, padding=1).requires_grad_(False)

    def count_and_jitter(x):
        state["n"] += 1
        return x + 0.01 * math.sin(state["n"]) * hidden.to(x.device)(x)

    Norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.03)
    return nn.Sequential(
        Lambda(count_and_jitter),
        nn.Conv2d(shape[0], 16, 3, padding=1),
        Norm(16),
        Lambda(partial(F.leaky_relu, negative_slope=0.2)),
        Lambda(lambda x: x.amax((-1, -2))),
        nn.Linear(16, classes),
    )


# Performer random features redrawn every 3rd call into a buffer (lucidrains/performer-pytorch).
@cls_register("performer_redraw_projection_counter")
class Performer(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.proj, self.qkv, self.fc = (
            nn.Linear(shape[0] * shape[2], 16),
            nn.Linear(16, 48),
            nn.Linear(16, classes),
        )
        self.register_buffer("projection_matrix", torch.randn(24, 16))
        self.register_buffer("calls_since_last_redraw", torch.tensor(0))

    def forward(self, x):
        if self.training:
            if self.calls_since_last_redraw >= 3:
                self.projection_matrix.copy_(
                    torch.linalg.qr(torch.randn(24, 16, device=x.device))[0] * 4
                )
                self.calls_since_last_redraw.zero_()
            else:
                self.calls_since_last_redraw += 1
        t = self.proj(x.permute(0, 2, 1, 3).flatten(2))
        q, k, v = self.qkv(t).chunk(3, -1)
        phi = lambda u: torch.relu(u @ self.projection_matrix.t() / 4) + 1e-3
        q, k = phi(q), phi(k)
        y = q @ (k.mT @ v) / (q @ k.sum(1).unsqueeze(-1))
        return self.fc((t + y).mean(1))


# Spiking net: membrane state buffers resized with the batch, surrogate gradient (snntorch, SpikingJelly).
@cls_register("spiking_membrane_state_resized_by_batch")
class Spiking(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(math.prod(shape), 48), nn.Linear(48, classes)
        self.register_buffer("mem", torch.zeros(0), persistent=False)
        self.beta = nn.Parameter(torch.tensor(0.9))
        self.threshold = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, x):
        i, out = self.fc1(x.flatten(1)), 0
        if self.mem.shape != i.shape:
            self.mem = torch.zeros_like(i)
        mem = self.mem.detach()
        for _ in range(4):
            mem = self.beta.clamp(0, 1) * mem + i
            sg = torch.sigmoid(4 * (mem - self.threshold))
            spk = ((mem > self.threshold).float() - sg).detach() + sg
            mem = mem - spk.detach() * self.threshold
            out = out + self.fc2(spk)
        self.mem = (0.1 * mem).detach()
        return out / 4


# Hebbian plastic trace updated in place in no_grad each call, also in eval (differentiable plasticity).
@cls_register("hebbian_trace_updates_in_eval_too")
class Hebb(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.inp = nn.Linear(math.prod(shape), 24)
        self.w, self.alpha = (
            nn.Parameter(torch.randn(24, 24) * 0.1),
            nn.Parameter(torch.full((24, 24), 0.01)),
        )
        self.register_buffer("hebb", torch.zeros(24, 24))
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        h = torch.tanh(self.inp(x.flatten(1)))
        y = torch.tanh(h @ (self.w + self.alpha * self.hebb))
        self.hebb = (0.95 * self.hebb + 0.05 * (h.t() @ y) / len(x)).detach()
        return self.fc(y)


# Two buffers that alias the same memory (register_buffer of a slice), one updated in place.
@cls_register("buffers_alias_same_memory")
class AliasBuf(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.enc, self.fc = nn.Linear(math.prod(shape), 32), nn.Linear(32, classes)
        base = torch.zeros(2, 32)
        self.register_buffer("stats", base)
        self.register_buffer("mean", base[0])
        self.register_buffer("sq", base[1])

    def forward(self, x):
        h = self.enc(x.flatten(1))
        if self.training:
            self.mean.lerp_(h.detach().mean(0), 0.1)
            self.sq.lerp_(h.detach().pow(2).mean(0), 0.1)
        return self.fc(F.relu((h - self.stats[0]) / (self.stats[1] + 1).sqrt()))


# From here on: by a reader of the examination, who looked for what would slip through it.
class Plain(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.body = nn.Linear(math.prod(shape), 32)
        self.fc = nn.Linear(32, classes)

    def features(self, x):
        return torch.tanh(self.body(x.flatten(1)))

    def forward(self, x):
        return self.fc(self.features(x))


# VQ: dead codes restarted from a generator that nobody seeds
@cls_register("dead_code_restart_unseeded")
class Stamp(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.register_buffer("code", torch.zeros(8))

    def forward(self, x):
        y = super().forward(x) + 0 * self.code[0]
        if self.training:
            self.code[:] = torch.from_numpy(np.random.default_rng().normal(size=8))
        return y


# A fast-weights loop: an optimizer of its own, with momentum, stepped after the logits.
@cls_register("inner_optimizer_with_momentum")
class Inner(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.proxy = nn.Parameter(torch.ones(32), requires_grad=False)
        self.inner = torch.optim.SGD([self.proxy], lr=0.01, momentum=0.9)

    def forward(self, x):
        h = self.features(x)
        y = self.fc(h * self.proxy.clone())
        if self.training:
            self.proxy.grad = h.detach().mean(0)
            self.inner.step()
            self.proxy.grad = None
        return y


# Data-dependent whitening: the mean of the first batch it sees, kept as an attribute.
@cls_register("mean_of_first_batch_attribute")
class FirstMean(Plain):
    mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean((0, 2, 3), keepdim=True).detach()
        return super().forward(x - self.mean)


@cls_register("noise_of_first_use")
class FirstNoise(Plain):
    noise = None

    def forward(self, x):
        if self.noise is None:
            self.noise = 0.1 * torch.randn(x.shape[1:])
        return super().forward(x + self.noise)


# Random projections cached for each batch size.
@cls_register("draws_cached_by_batch_size")
class Cached(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.masks = {}

    def forward(self, x):
        if len(x) not in self.masks:
            self.masks[len(x)] = (torch.rand(len(x), 1, 1, 1) > 0.1).float()
        return super().forward(x * self.masks[len(x)])


# loralib's Linear: the low-rank product is merged into the frozen weight for evaluations.
class LoRA(nn.Linear):
    def __init__(self, i, o, r=4):
        super().__init__(i, o)
        self.A, self.B = nn.Parameter(torch.randn(r, i) * 0.1), nn.Parameter(torch.zeros(o, r))
        self.weight.requires_grad_(False)
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode and self.merged:
            self.weight.data -= self.B @ self.A
        elif not mode and not self.merged:
            self.weight.data += self.B @ self.A
        self.merged = not mode
        return self

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        return y if self.merged else y + x @ self.A.T @ self.B.T


@cls_register("lora_merged_in_eval")
class LoraNet(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.body = LoRA(math.prod(shape), 32)


@cls_register("forward_hook_in_constructor")
class Hooked(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.body.register_forward_hook(lambda m, i, o: o * 0.9)
        self.body.register_forward_pre_hook(self.before)
        self.fc.register_full_backward_hook(lambda m, gi, go: None)
        self.register_forward_hook(self.after, with_kwargs=True)

    def before(self, module, given):
        return (given[0] * 1.1,)

    def after(self, module, args, kwargs, output):
        return output - output.mean(1, keepdim=True)


@cls_register("grad_norm_read_in_forward")
class ReadsGrad(Plain):
    def forward(self, x):
        g = self.fc.weight.grad
        y = super().forward(x)
        return y if g is None or not self.training else y / (1 + g.norm())


@cls_register("zero_grad_in_forward")
class Zeroes(Plain):
    def forward(self, x):
        if self.training:
            self.zero_grad()
        return super().forward(x)


@cls_register("counter_of_evaluations")
class CountsEvaluations(Plain):
    n = 0

    def forward(self, x):
        if not self.training:
            self.n += 1
        return super().forward(x) * (1.01 if self.n > 5 else 1.0)


@cls_register("scale_if_distributed")
class IfDistributed(Plain):
    def forward(self, x):
        return super().forward(x) * (2.0 if dist.is_available() and dist.is_initialized() else 1.0)


@cls_register("world_group_all_reduce")
class WorldGroup(Plain):
    def forward(self, x):
        h = self.features(x)
        if dist.is_initialized():
            m = h.detach().mean(0)
            dist.all_reduce(m, group=dist.group.WORLD)
            h = h - m
        return self.fc(h)


@cls_register("world_size_from_environment")
class WorldSize(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.scale = 1 / math.sqrt(int(os.environ.get("WORLD_SIZE", 1)))

    def forward(self, x):
        return super().forward(x) * self.scale


@cls_register("rank_from_environment_in_forward")
class Rank(Plain):
    def forward(self, x):
        return super().forward(x) + 0.01 * int(os.environ.get("RANK", "0"))


@cls_register("threads_set_in_forward")
class Threads(Plain):
    def forward(self, x):
        torch.set_num_threads(2)
        return super().forward(x)


@cls_register("sparse_adjacency_buffer")
class Graph(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.register_buffer("adjacency", torch.eye(32).to_sparse())

    def forward(self, x):
        return self.fc(torch.sparse.mm(self.adjacency, self.features(x).T).T)


@cls_register("rotary_table_filled_when_used")
class Rotary(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.register_buffer("table", None, persistent=False)

    def forward(self, x):
        h = self.features(x)
        if self.table is None or self.table.shape[0] != h.shape[1]:
            self.table = torch.cos(torch.arange(h.shape[1]) / 7)
        return self.fc(h * self.table)


@cls_register("transformer_encoder_with_padding_mask")
class Encoder(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        c, h, w = shape
        self.embed = nn.Linear(c * w, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        rows = x.permute(0, 2, 1, 3).flatten(2)
        mask = torch.zeros(rows.shape[:2], dtype=torch.bool)
        mask[:, -1] = True
        y = self.encoder(self.embed(rows), src_key_padding_mask=mask)
        return self.fc(y[:, 0])


@cls_register("dropout_by_a_parameter")
class Probability(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.p = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        h = self.features(x)
        keep = torch.bernoulli(self.p.expand(h.shape[0], 1)) if self.training else self.p
        return self.fc(h * (keep.detach() - self.p.detach() + self.p))


@cls_register("lazy_batch_norm_without_affine")
class Lazy(nn.Sequential):
    def __init__(self, classes, shape):
        super().__init__(
            nn.Conv2d(shape[0], 8, 3),
            nn.LazyBatchNorm2d(affine=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, classes),
        )


@cls_register("frozen_bn_beside_a_center")
class DinoFrozen(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, classes)
        self.register_buffer("center", torch.zeros(classes))

    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        return self

    def forward(self, x):
        y = self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))
        if self.training:
            self.center.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y - self.center


@cls_register("stochastic_depth_over_spectral_norm")
class Drawn(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.block = parametrizations.spectral_norm(nn.Linear(32, 32))

    def forward(self, x):
        h = self.features(x)
        if not self.training or random.random() < 0.5:
            h = h + self.block(h)
        return self.fc(h)


class Block(nn.Module):
    ids = itertools.count()

    def __init__(self, d):
        super().__init__()
        self.layer_id, self.uuid = next(Block.ids), str(uuid.uuid4())
        self.linear = nn.Linear(d, d)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


@cls_register("blocks_with_ids")
class Ids(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.blocks = nn.Sequential(Block(32), Block(32))

    def forward(self, x):
        return self.fc(self.blocks(self.features(x)))


class Jitter:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        return x + 0.1 * torch.from_numpy(self.rng.normal(size=tuple(x.shape))).float()


@cls_register("generator_in_a_helper_object")
class Helper(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.jitter = Jitter(np.random.default_rng(0))

    def forward(self, x):
        return super().forward(self.jitter(x) if self.training else x)


RNG = np.random.default_rng(3)


@cls_register("generator_of_the_file")
class FileRng(Plain):
    def forward(self, x):
        return super().forward(x + 0.1 * float(RNG.normal()) if self.training else x)


@cls_register("masks_of_the_class_by_shape")
class ClassMasks(Plain):
    masks = {}

    def forward(self, x):
        key = tuple(x.shape), x.device
        if key not in ClassMasks.masks:
            ClassMasks.masks[key] = torch.ones(x.shape, device=x.device).tril()
        return super().forward(x * ClassMasks.masks[key])


class Step:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


@cls_register("counter_in_slots")
class Slots(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.step = Step()

    def forward(self, x):
        self.step.count += 1
        return super().forward(x) * (1.01 if self.step.count > 60 else 1.0)


STATE = types.SimpleNamespace(step=0)


@cls_register("counter_in_a_namespace_of_the_file")
class Namespace(Plain):
    def forward(self, x):
        STATE.step += 1
        return super().forward(x) * (1.01 if STATE.step > 60 else 1.0)


@cls_register("counts_by_tuple_keys")
class TupleKeys(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.counts = {("a", 1): 0, ("b", 2): 0}

    def forward(self, x):
        self.counts[("a", 1)] += 1
        return super().forward(x) * (1.01 if self.counts[("a", 1)] > 60 else 1.0)


@cls_register("groups_of_eight_in_a_batch")
class Groups(Plain):
    def forward(self, x):
        h = self.features(x).view(-1, 8, 32)
        return self.fc((h - h.mean(1, keepdim=True)).view(-1, 32))


@cls_register("squeeze_of_everything")
class Squeeze(Plain):
    def forward(self, x):
        return self.fc(self.features(x).squeeze())


@cls_register("constructor_raises")
class Raises(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        assert shape[1] >= 32, "images of 32 pixels or more"


@cls_register("fake_quant_per_tensor")
class Qat(Plain):
    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

        self.fq = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x):
        return self.fc(self.fq(self.features(x)))


@cls_register("group_lstm_over_rows")
class Rows(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.lstm = nn.LSTM(shape[0] * shape[2], 24, 2, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        y, _ = self.lstm(x.permute(0, 2, 1, 3).flatten(2))
        return self.fc(y[:, -1])
