"""`korvet dev-cluster`: several brokers on a Redis Cluster, all of them child processes on loopback ports.

`running.py` starts everything in order and stops it in reverse; `nodes.py` starts the servers and forms their cluster;
`brokers.py` starts the brokers; `folder.py` has the folder of their data; `processes.py` owns child processes, which
end with this one even if it is killed; `ports.py` finds free ports.

The cluster is for development: no process is started again, and there are neither TLS nor passwords.
"""

from korvet.devcluster.running import DevCluster, Options, running_cluster

__all__ = ["DevCluster", "Options", "running_cluster"]
