"""Images of kornia: a warp that is learnt, filters, colours, and augmentations that keep their parameters."""

from __future__ import annotations

import kornia
import torch

from ..run import Run


def main(run: Run) -> None:
    picture = torch.rand(1, 3, 24, 24)
    picture = kornia.filters.gaussian_blur2d(picture, (5, 5), (1.5, 1.5)).to(run.device)
    # between pixels: where a point crosses one, the gradient jumps
    angle = torch.full((1,), 3.3, device=run.device, requires_grad=True)
    center = torch.tensor([[12.0, 12.0]]).to(run.device)
    scale = torch.ones(1, 2).to(run.device)

    def turned(angle: torch.Tensor) -> torch.Tensor:
        matrix = kornia.geometry.get_rotation_matrix2d(center, angle, scale)
        return kornia.geometry.warp_affine(picture, matrix, (24, 24))

    target = turned(torch.full((1,), 8.0).to(run.device))

    def loss_of(angle: torch.Tensor) -> torch.Tensor:
        found = turned(angle)
        return kornia.losses.ssim_loss(found, target, 5) + torch.nn.functional.mse_loss(
            kornia.filters.sobel(found), kornia.filters.sobel(target)
        )

    optimizer = torch.optim.Adam([angle], lr=1.0)
    compiled = run.compile(loss_of)
    run.start()
    for _ in range(6):
        loss = compiled(angle)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record(loss)
    changed = kornia.enhance.equalize_clahe(kornia.color.hsv_to_rgb(kornia.color.rgb_to_hsv(picture)))
    edges, _ = kornia.filters.canny(picture)
    corners = kornia.feature.harris_response(kornia.color.rgb_to_grayscale(picture), 0.04)
    run.record(angle, changed.mean(), edges.mean(), corners.square().mean() * 1e3)
    points = torch.rand(1, 6, 2).to(run.device)
    moved = kornia.geometry.transform_points(torch.eye(3).to(run.device)[None] * 1.5, points)
    run.record(*kornia.geometry.find_homography_dlt(points, moved + 0.1 * points.square()).flatten())
