"""Lists every limit in one table. Input from elsewhere is checked against it before anything is allocated."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# Wire
HELLO_BYTES: Final = KIB  # the dialer's certificate, sent in clear
FRAME_BYTES: Final = 64 * KIB  # body of one frame
CONTROL_BYTES: Final = 4 * MIB  # one control message, reassembled
BULK_BYTES: Final = 2 * MIB  # one bulk message: a stored chunk and its envelope
STREAMS_OPEN: Final = 256  # requests under way on one connection, each way
HANDSHAKE_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 120.0
CONNECTIONS: Final = 256  # accepted by one listener at a time
WORKER_BYTES: Final = 64 * MIB  # one message to a process in the sandbox, without its blobs; its job bounds replies
VAULT_BYTES: Final = 64 * MIB  # one of a node's private files, without its blobs
STATE_BYTES: Final = 64 << 30  # a state of a model that nobody has built yet
REPLY_BYTES: Final = 64 * KIB  # of a reply in words and figures, and what any reply may have beside its vectors
REPLY_VALUES: Final = 64  # the same: numbers, texts and lists
REPLY_SECONDS: Final = 60.0  # for a reply that has begun to come, beside its bytes at REPLY_RATE
REPLY_RATE: Final = MIB  # bytes a second

# Networks that others join
NETWORK_NAME_CHARACTERS: Final = 32
HOST_CHARACTERS: Final = 253  # of a DNS name
INVITATION_SEATS: Final = 3
INVITATION_CHARACTERS: Final = 4096  # of what is pasted, with all that pasting adds
INVITATION_BYTES: Final = 2 * KIB
TOKEN_BYTES: Final = 64  # of a grant's token
NETWORK_SEATS: Final = 16  # that a card or a network file names
NETWORK_RELAYS: Final = 16  # the same
NETWORK_CARD_BYTES: Final = 16 * KIB
NETWORK_MESSAGE_CHARACTERS: Final = 400
LICENCE_CHARACTERS: Final = 100  # of a published model's
MODEL_BYTES: Final = 16 << 30  # of a published model
MODEL_RECORD_BYTES: Final = MIB  # with the job's terms and the hash of each chunk
MODELS: Final = 256  # that a seat keeps
MODELS_OF_ACCOUNT: Final = 8
MODELS_FOUND: Final = 3  # of one name, that an answer holds

# Store
CHUNK_BYTES: Final = MIB  # plaintext bytes of one STREAM chunk
OBJECT_BYTES: Final = 64 << 30
OBJECT_CHUNKS: Final = 1 << 16
MANIFEST_BYTES: Final = 34 * OBJECT_CHUNKS + KIB  # a hash is 32 bytes behind a 2-byte msgpack head

# Training
PEERS: Final = 1 << 10  # members of one round (merge: N * weight * range < 2^62)
WEIGHT: Final = 1 << 20  # tokens that one peer may count in one round
ROUNDS: Final = 1 << 20
ACCUSABLE_ROUNDS: Final = 16  # behind the last recorded one: so long a node keeps what it may be asked about
TENSORS: Final = 1 << 16
TENSOR_NAME_BYTES: Final = 256
TENSOR_DIMENSIONS: Final = 8
ELEMENTS: Final = 1 << 36  # scalars in one model
PAYLOAD_BYTES: Final = 8 << 30

STATED: Final = 1 << 50  # of a loss or a gradient norm, in units of 2^-20: more than 10^9
SANDBOX_CHARACTERS: Final = 32  # of the name of a sandbox tier
ATTESTED_CHARACTERS: Final = 64  # of each thing that a node says it runs
ATTESTED_BYTES: Final = 4096  # of one attestation in a run's folder
ATTESTED_NODES: Final = 128  # of which a run's folder is read

# Audits
# Leaves with their paths that a peer shows at a time: losses of some 100,000 steps.
OPENING_BYTES: Final = MIB
# With manifests; the order that brings it to a verifier has to fit in a control message.
OPENED_BYTES: Final = 3 * MIB
VERDICT_BYTES: Final = 4 * KIB  # what a verifier answers: a promise, or a border and a verdict
PLANNED_SEGMENTS: Final = 1 << 12  # of a round whose audits are planned: each number of false ones is looked at

SEGMENTS: Final = 64  # of a round

# Simulated networks
SIMULATED_NODES: Final = 1 << 20
SIMULATED_ROUNDS: Final = 1 << 24  # of a node: 28 bits count its draws
SIMULATED_TABLE_BYTES: Final = 1 << 28  # rounds by relays
SIMULATED_DAY: Final = 1 << 29  # rounds, comings and goings of all nodes: no loop hears Ctrl-C before a day is over

# Canonical graphs
GRAPH_BYTES: Final = 16 * MIB
CONSTANTS_BYTES: Final = 16 * MIB  # a module's own, shipped with its graph
GRAPH_INPUTS: Final = 1 << 17
GRAPH_NODES: Final = 1 << 17
GRAPH_OUTPUTS: Final = 1 << 17
GRAPH_ARGS: Final = 3  # of one node
GRAPH_FOLD: Final = 256  # what one sum, maximum, matrix product or `put_add` runs over: an element's arguments are few

EXECUTION_LEAVES: Final = 1 << 32  # tiles of one segment's execution: eight levels of a 16-ary tree
TILE_BYTES: Final = 32 * KIB  # 64 x 64 whole numbers
EXHIBIT_BYTES: Final = 240 * KIB  # what the referee is given: the rest of TX_BYTES is the transaction around it
EXHIBIT_TILES: Final = 64  # opened tiles of arguments
EXHIBIT_ENTRIES: Final = GRAPH_ARGS  # of a value's arguments

# Ledger
NEVER: Final = 1 << 63  # after every ledger time
TX_BYTES: Final = 256 * KIB
TX_OPS: Final = 64
BLOCK_BYTES: Final = 2 * MIB
BLOCK_TXS: Final = 4096
SEATS: Final = 100  # of one committee
EPOCH_BLOCKS: Final = 1 << 16
COMMITTEE_BYTES: Final = 4 * MIB  # one message between the seats of a committee
ADDRESS_BYTES: Final = 259  # a DNS name and a port
BLOCK_FRAME_BYTES: Final = 8 * KIB  # of BLOCK_BYTES, kept for header, certificate and list lengths
LEASES_PER_JOB: Final = PEERS
AUDITORS: Final = 16  # of one job that sign one tally, one attestation or one accusation
VOUCHERS: Final = 256  # claimed by one operation
PROOF_DEPTH: Final = 48
LANE_BYTES: Final = 8 * MIB  # that wait for one other validator
POOL_TXS: Final = 1 << 16  # waiting at one validator: some 16 full blocks
POOL_BYTES: Final = 64 * MIB
POOL_SENDER: Final = 1 << 12  # nonces of one sender, ahead of its account
POOL_MS: Final = 600_000  # that a transaction waits at one validator
POOL_VERDICTS: Final = 1 << 17  # signatures that a validator remembers having judged
JUDGE_BYTES: Final = 4 * MIB  # of transactions that one process is asked to judge at once: the largest block, twice
JUDGE_CHUNKS: Final = 256  # of them that wait
JUDGE_TXS: Final = 256  # of one part that a process judges: some 25 ms
JUDGES: Final = 64  # processes of one validator
VERIFICATION_QUEUE_TXS: Final = 1 << 14  # handed in, that wait to be judged at one validator
VERIFICATION_QUEUE_BYTES: Final = 16 * MIB
ROW_BYTES: Final = 4 * KIB  # a committee of SEATS
RECEIPT_FILE_BYTES: Final = MIB  # a genesis and the receipts of one party
SNAPSHOT_CHUNK_BYTES: Final = MIB  # rows of a table that are sent together
TABLE_ROWS: Final = 1 << 40
SNAPSHOT_BLOCKS: Final = 1024  # then a server takes another snapshot, when it is asked for one
SNAPSHOTS: Final = 2  # that it holds, so that who fetches one can come to its end
VOTE_FRAME_BYTES: Final = (
    8 * MIB
)  # records that one append to a vote log adds: a proposal and what lets it be voted for
VOTE_LOG_BYTES: Final = 256 * MIB  # blocks that are not final, of 64 views, and the votes of many more

# Market
ASKS: Final = 1 << 20  # of one book
CARD_CHARACTERS: Final = 64  # of the name of a class of cards
CARDS: Final = 64  # classes that one bid names
SIMILARITY: Final = 10_000  # percent: speeds that differ by more have no use for each other
MARKET_UNITS: Final = 1 << 40  # of one job and member, and calibrated ones
UNIT_FLOP: Final = 1 << 62  # that one unit may take
UNIT_AMOUNT: Final = 1 << 50  # bytes, steps or seconds of one unit
BIT_RATE: Final = 1 << 50  # bit/s
PRICES: Final = 1 << 18  # bundles whose price is remembered

# Specs and logs
TOML_KEY_PARTS: Final = 16  # a.b.c = 1 has three
TOML_DEPTH: Final = 32  # of arrays and inline tables in each other
TOML_TABLES: Final = 1 << 16  # parts of keys but the last, arrays and tables of a text: each takes some kilobyte
SPEC_BYTES: Final = 256 * KIB
LOG_RECORD_BYTES: Final = 4 * MIB
MODULE_BYTES: Final = MIB  # a user's model source
LINEAGE: Final = 64  # runs that one stands on, the runs that those stand on among them
REASON_LENGTH: Final = 300  # characters of why a job is outcome only
TEXT_BYTES: Final = 8 << 30  # of text that one job names: it is read into memory when the job is prepared
DATA_BYTES: Final = 1 << 40  # of a packed data set
WHOLE_DATA_BYTES: Final = 64 * MIB  # of one that every node gets whole; of a larger one it fetches what it needs,
WHOLE_DATA_MOST: Final = GIB  # unless that is as much as all of it, and no more than this
DATASET_LEAVES: Final = 1 << 11  # of a large one, that are asked for at once: 8 to 32 MiB, which its requester holds
PROGRAM_PLACES: Final = 8 << 30  # where a window of a proven job's data may start: law

# Plans of parallel training
PLANNED_RANKS: Final = 1 << 20  # and any other count of one plan
PLANNED_TIMED: Final = 1 << 11  # ranks whose exchange is timed rank by rank
PLANNED_FLOWS: Final = 1 << 9  # that share lines at a time
PLANNED_OPERATIONS: Final = 1 << 18  # of one pipeline's timeline
PLANNED_AMOUNT: Final = 1e30  # of any quantity: bytes, seconds, FLOP

# Plans of memory
PLANNED_STAGES: Final = 1 << 12  # of one pipeline
TRACED_BYTES: Final = 1 << 60  # of anything that a traced module keeps

# Connections
HANDSHAKE_BYTES: Final = 16 * KIB  # from a stranger, before its key is proved
HALF_OPEN: Final = 64  # connections of one listener whose handshake is under way
CONNECTIONS_PER_PEER: Final = 12  # accepted from one key, the oldest makes room: three paths with their lanes
CONNECTION_BYTES: Final = 64 << 30  # then a new connection, instead of new keys for the old one
REQUEST_BYTES: Final = 64 * MIB  # bodies of requests under way on one connection, each way
OUTGOING_BYTES: Final = 8 * MIB  # bodies queued on one connection and lane before callers wait
METHOD_BYTES: Final = 64
BULK_HANDLERS: Final = 32  # of one key at work: each may answer with BULK_BYTES
ERROR_BYTES: Final = 4 * KIB  # an error reply
HOST_BYTES: Final = 253  # a DNS name
TRANSFER_CHUNKS: Final = 64  # of one object asked for and not yet here, over all ways together
OWED_RATE: Final = 125_000  # bytes a second, at which what is owed to an audit may come: 1 Mbit/s
OWED_SECONDS: Final = 3600  # the most for one object, whatever its size: a job's lines must be able to carry it (plan)
OWED_LEAST_SECONDS: Final = 30  # for what has no size
UNRECORDED_ROUNDS: Final = 3  # closed, and not on the ledger yet when a coordinator orders another one: audits take one
UNPAID_ROUNDS: Final = UNRECORDED_ROUNDS + 2  # that a node works before it sees pay
PLACES: Final = 8  # where one peer may be reached
RECORD_SECONDS: Final = 600  # an endpoint record's longest life
CLOCK_SECONDS: Final = 60  # by which two clocks may disagree
NODE_CERTIFICATE_BYTES: Final = 160  # an account's word for a node key, within a TLS certificate or a ticket
EPOCHS: Final = 1 << 32  # of one account's node keys
KEYRING: Final = 1 << 18  # accounts whose node keys one process follows

# Groups at a relay
FAN_MEMBERS: Final = 256  # of one group
FAN_JOIN_BYTES: Final = 12 * KIB  # a join with its roster, sent in clear: 34 bytes a member
FAN_FRAME_BYTES: Final = 16 * KIB  # plaintext of one frame: the relay gives on whole frames
FAN_FRAMES: Final = 1 << 32  # of one stream, sealed under one key
FAN_STREAMS: Final = 64  # that one member may begin in one epoch, as others see it
FAN_HELD_BYTES: Final = 64 * MIB  # messages of all members being put together by one
FAN_GROUPS: Final = 64  # at one relay
FAN_GROUPS_PER_OWNER: Final = 4
FAN_GROUP_BYTES: Final = 64 * MIB  # taken from a group's members and not yet given to all others
FAN_BYTES: Final = 512 * MIB  # the same for all groups of a relay
FAN_PATIENCE_SECONDS: Final = 2.0  # for a member that holds up its group
FAN_OLD_SECONDS: Final = 10.0  # for what was sent before a new epoch

# Relay
TICKET_BYTES: Final = 4 * KIB  # what opens a connection to a relay, sent in clear; most of it is the pass
TICKET_SECONDS: Final = 120  # a ticket's longest life; half of it may be spent on clocks that disagree
TICKETS: Final = 1 << 16  # used and not expired, remembered by one relay
TICKETS_PER_KEY: Final = 1 << 10
CIRCUITS: Final = 1024  # waiting or joined at one relay
CIRCUITS_PER_KEY: Final = 64  # dialled by one key
CIRCUIT_BUFFER_BYTES: Final = 64 * KIB  # held by a relay for one direction of a circuit
CIRCUIT_SECONDS: Final = 5.0  # for the wanted peer to come
CIRCUIT_IDLE_SECONDS: Final = 300.0  # without a byte: more than two peers' own patience (IDLE_SECONDS)
# Then an attached peer renews its spare connection: many routers forget after minutes.
SPARE_SECONDS: Final = 60.0
REATTACH_SECONDS: Final = 1.0  # the longest pause before an attached peer tries its relay again

# What a relay measures for whoever asks
MEASURE_BYTES: Final = 64 * KIB  # one answer of `relay.source`, one question of `relay.sink`
MEASURE_KEY_BYTES: Final = 64 * MIB  # for one key in a minute, both ways together
MEASURE_ALL_BYTES: Final = 512 * MIB  # for all keys in a minute
MEASURE_KEYS: Final = 1 << 10  # that are measured for in a minute
MEASURE_REACHES: Final = 4  # tries to reach one address in a minute
MEASURE_REACH_SECONDS: Final = 2.0  # that one of them takes at most

# Passes
RELAY_PRICE: Final = 10**15  # pico-credits a GiB: a thousand credits
PASS_HOLDERS: Final = 64  # parties of one pass
PASS_BYTES: Final = 1 << 50  # quota of one pass
PASS_SECONDS: Final = 900  # a pass's longest life; the payer signs it again meanwhile
PASS_SKEW_SECONDS: Final = 60  # clocks of payer and relay that disagree by less do not matter
PASSES: Final = 4096  # that one relay keeps the books of
PASSES_PER_PAYER: Final = 256
TILL_BYTES: Final = 32 * KIB  # of one pass and its last receipts on a relay's disk
HEARD_BYTES: Final = KIB  # a relay's answer to a receipt
RECEIPT_BYTES: Final = 8 * MIB  # a party signs after so many bytes, and
RECEIPT_SECONDS: Final = 10.0  # after so long, if anything was carried
RECEIPT_WINDOW: Final = 64 * MIB  # what a relay leaves unsigned for one payer at most, over all its passes
RECEIPT_STEP: Final = MIB  # of it: what one write brings a peer before it is counted
RECEIPT_CREDIT: Final = 32 * MIB  # that a party which was started anew believes a relay, in a life
MADE_GOOD: Final = 16  # a payer pays for one lost byte to so many that are signed for, at most
USED_BYTES: Final = 32 * KIB  # a relay's answer to a payer
HELD_SECONDS: Final = 15.0  # a circuit waits for receipts, then it ends
CLAIM_PASSES: Final = 128  # settled by one operation
CLAIM_RECEIPTS: Final = 512

# A user's line
BOOK_BYTES: Final = 4 * KIB  # the file that counts a month's volume
BOOK_MONTHS: Final = 12  # that it remembers
LINES_KNOWN: Final = 16  # networks whose upload is remembered

# Paths
CANDIDATES: Final = 8  # addresses that one offer of a simultaneous open may name
OFFER_BYTES: Final = KIB
LAN_SERVICES: Final = 64  # heard by multicast DNS and remembered; the oldest makes room
LAN_PLACES: Final = 4  # of one of them

# The ledger's readers
API_HEAD_BYTES: Final = 8 * KIB  # of one request: there is no body
API_DRAIN_BYTES: Final = 128 * KIB  # read and thrown away behind it, so that the answer arrives
API_TARGET_BYTES: Final = 2 * KIB
API_HEADERS: Final = 64
API_HEAD_SECONDS: Final = 5.0  # for all of a request to come
API_SEND_SECONDS: Final = 30.0  # for an answer to be taken
API_ANSWER_BYTES: Final = 16 * MIB
API_CONNECTIONS: Final = 128
API_CONNECTIONS_PER_ADDRESS: Final = 16
API_ADDRESSES: Final = 4096  # whose rate is remembered; the one that was silent longest makes room
API_RATE: Final = 50.0  # tokens a second for one address; a path costs 1 to 8
API_BURST: Final = 200.0  # tokens that it may have saved
METRIC_PEERS: Final = 128  # that one page of metrics names

# Offers
OFFERED_HOSTS: Final = 1 << 12  # of one file of offers
OFFERED_PAIRS: Final = 1 << 10  # of hosts or regions, between which somebody has measured
OFFERS_CHARACTERS: Final = 4 * MIB
OFFER_NAME_CHARACTERS: Final = 96

# Cards
CARD_NAME_CHARACTERS: Final = 96  # of a name that is looked for
CARD_TABLE_CHARACTERS: Final = MIB  # of the table: 169 rows are 40 kB
CARD_PROFILE_CHARACTERS: Final = 16 * KIB  # of what a user measured
CARD_TEXT_CHARACTERS: Final = 256  # of one line there
SITES: Final = 1 << 16  # over which one plan shares out work
CARDS_OF_SITE: Final = 1 << 16

# Placement
PLACED_DEVICES: Final = 1 << 17  # of one mesh
PLACED_TOGETHER: Final = 1 << 11  # of which times between all pairs are kept: 32 MiB a matrix
PLACED_STAGES: Final = 1 << 7
