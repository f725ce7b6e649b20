"""A small Kafka client over Trio, for the command line, the pipeline and the tests.

    async with open_client("localhost:9092") as client:
        await client.produce("orders", [Record(b"one", key=b"k")])
        async for record in client.consume({TopicPartition("orders", 0): 0}):
            ...

Producers are idempotent. `Client.transaction` writes to several partitions at once, all or nothing.
`korvet.client.membership` has members of consumer groups.
"""

from korvet.client.authentication import REFUSALS as REFUSALS
from korvet.client.client import Client as Client
from korvet.client.client import open_client as open_client
from korvet.client.connection import Address as Address
from korvet.client.connection import parse_address as parse_address
from korvet.client.consuming import Consumer as Consumer
from korvet.client.model import EARLIEST as EARLIEST
from korvet.client.model import LATEST as LATEST
from korvet.client.model import MAX_TIMESTAMP as MAX_TIMESTAMP
from korvet.client.model import ConsumedRecord as ConsumedRecord
from korvet.client.model import ListedOffset as ListedOffset
from korvet.client.model import OffsetAndMetadata as OffsetAndMetadata
from korvet.client.model import Partition as Partition
from korvet.client.model import Produced as Produced
from korvet.client.model import Record as Record
from korvet.client.model import Topic as Topic
from korvet.client.model import TopicPartition as TopicPartition
from korvet.client.security import PLAINTEXT as PLAINTEXT
from korvet.client.security import Security as Security
from korvet.client.security import security_of as security_of
from korvet.client.transactional import Transaction as Transaction
