"""Graph networks of torch_geometric: nodes of one graph, and batches of graphs with pooling."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

from ..run import Run


class Network(torch.nn.Module):
    """Three kinds of convolutions, and a mean of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GATConv(16, 8, heads=2)
        self.third, self.last = SAGEConv(16, 16), torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        return self.last(global_mean_pool(self.third(x, edges).relu(), batch, 4))


def main(run: Run) -> None:
    graphs = [
        Data(x=torch.randn(10, 8), edge_index=torch.randint(0, 10, (2, 30)), y=torch.tensor([n % 3])) for n in range(8)
    ]
    model = Network().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    compiled = run.compile(model)
    run.start()
    for _ in range(3):
        for data in DataLoader(graphs, batch_size=4):
            data = data.to(run.device)
            loss = torch.nn.functional.cross_entropy(compiled(data.x, data.edge_index, data.batch), data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.record(loss)
