import static java.lang.invoke.MethodHandles.byteArrayViewVarHandle;
import static java.nio.ByteOrder.*;
import static org.apache.spark.sql.connector.catalog.TableCapability.BATCH_READ;

import java.io.*;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.stream.Stream;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A data source in Java (DataSource V2) that reads sealed segments of a data folder: value, index
 * and broker time of plain messages and batches. It is there to be measured (bench_spark_java.py),
 * not to be used: what it does not know, such as compression, is an error.
 *
 * <p>Like the source in Python it checks what it reads by the checksums of the index file's chunks,
 * and that the indexes have no gap. The layout is that of docs/formats.md and docs/entry-format.md.
 */
public final class LedgerSource implements TableProvider {
    private static final StructType SCHEMA = new StructType()
        .add("value", DataTypes.BinaryType)
        .add("__index", DataTypes.LongType)
        .add("__brokerPublishTime", DataTypes.TimestampType);

    @Override public StructType inferSchema(CaseInsensitiveStringMap options) { return SCHEMA; }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> given) {
        return new LedgerTable(new CaseInsensitiveStringMap(given));
    }

    private record LedgerTable(CaseInsensitiveStringMap options) implements SupportsRead {
        @Override public String name() { return "ledgers of " + options.get("topic"); }
        @Override public StructType schema() { return SCHEMA; }
        @Override public ScanBuilder newScanBuilder(CaseInsensitiveStringMap ignored) {
            return new LedgerScan(options);
        }
        @Override public Set<TableCapability> capabilities() { return Set.of(BATCH_READ); }
    }

    private static final class LedgerScan
        implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
        private final CaseInsensitiveStringMap options;
        private StructType columns = SCHEMA;

        LedgerScan(CaseInsensitiveStringMap options) { this.options = options; }

        /** Spark says which columns a query uses. A source in Python is not told. */
        @Override public void pruneColumns(StructType required) { columns = required; }
        @Override public Scan build() { return this; }
        @Override public StructType readSchema() { return columns; }
        @Override public Batch toBatch() { return this; }
        @Override public Factory createReaderFactory() { return new Factory(columns); }
        @Override public InputPartition[] planInputPartitions() {
            try {
                Path ledgers = Path.of(options.get("path"), "ledgers");
                return planned(ledgers, options.get("topic"), options.getInt("tasks", 2));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private record Factory(StructType columns) implements PartitionReaderFactory {
        @Override public boolean supportColumnarReads(InputPartition partition) { return true; }
        @Override public PartitionReader<InternalRow> createReader(InputPartition p) {
            throw none();
        }
        @Override public Reader createColumnarReader(InputPartition share) {
            return new Reader((Share) share, columns);
        }
    }

    /** Chunks of one segment's index file, and what its records begin with. */
    private record Run(String name, int headerBytes, int marker, long firstEntry, int rows,
        int first, int end) implements Serializable {
        Run part(int from, int to) {
            return new Run(name, headerBytes, marker, firstEntry, rows, from, to);
        }
    }

    private record Share(List<Run> runs) implements InputPartition {}

    /** Shares of about the same number of chunks, each in the topic's order. */
    private static InputPartition[] planned(Path ledgers, String topic, int tasks)
        throws IOException {
        List<Run> whole = new ArrayList<>();
        try (Stream<Path> files = Files.list(ledgers)) {
            for (Path file : files.filter(x -> x.toString().endsWith(".idx")).sorted().toList()) {
                addRun(file, topic, whole);
            }
        }
        long chunks = whole.stream().mapToInt(Run::end).sum();
        InputPartition[] shares = new InputPartition[tasks];
        for (int task = 0; task < tasks; task++) {
            int from = (int) (chunks * task / tasks), to = (int) (chunks * (task + 1) / tasks);
            List<Run> runs = new ArrayList<>();
            for (Run run : whole) {
                if (from < run.end && to > 0) {
                    runs.add(run.part(Math.max(from, 0), Math.min(to, run.end)));
                }
                from -= run.end;
                to -= run.end;
            }
            shares[task] = new Share(runs);
        }
        return shares;
    }

    /** Adds all chunks of a sealed segment, if it is the topic's. */
    private static void addRun(Path index, String topic, List<Run> runs) throws IOException {
        try (FileChannel file = FileChannel.open(index)) {
            byte[] head = read(file, 0, (int) Math.min(file.size(), 8224), new byte[8224]);
            int bytes = u32(head, 24);
            if (new String(head, 124, u32(head, 120), StandardCharsets.UTF_8).equals(topic)) {
                byte[] trailer = read(file, file.size() - 40, 40, new byte[40]);
                require(trailer[0] == 'P' && trailer[3] == 'E', index + " is not sealed");
                int rows = u32(trailer, 8), marker = u32(head, 32 + bytes - 12);
                long first = (long) LONG.get(head, 72);
                String name = index.toString().replace(".idx", "");
                runs.add(new Run(name, bytes, marker, first, rows, 0, (rows + 1023) / 1024));
            }
        }
    }

    /** A batch for each chunk of the index: 1024 entries. */
    private static final class Reader implements PartitionReader<ColumnarBatch> {
        private final Iterator<Run> runs;
        private final Column values = new Column(DataTypes.BinaryType);
        private final Column indexes = new Column(DataTypes.LongType);
        private final Column times = new Column(DataTypes.TimestampType);
        private final boolean wantsValues;
        private final ColumnarBatch batch;
        private byte[] chunk = new byte[0], data = new byte[0];
        private FileChannel index, segment;
        private Run run;
        private int next, count, position;
        private long nextIndex = -1;

        Reader(Share share, StructType columns) {
            runs = share.runs.iterator();
            wantsValues = Arrays.asList(columns.fieldNames()).contains("value");
            Map<String, Column> all =
                Map.of("value", values, "__index", indexes, "__brokerPublishTime", times);
            batch = new ColumnarBatch(
                Arrays.stream(columns.fieldNames()).map(all::get).toArray(ColumnVector[]::new));
        }

        @Override public boolean next() throws IOException {
            while (run == null || next == run.end) {
                close();
                if (!runs.hasNext()) return false;
                run = runs.next();
                segment = FileChannel.open(Path.of(run.name + ".log"));
                index = FileChannel.open(Path.of(run.name + ".idx"));
                next = run.first;
            }
            readChunk(next++);
            batch.setNumRows(count);
            return true;
        }

        @Override public ColumnarBatch get() { return batch; }
        @Override public void close() throws IOException {
            if (segment != null) {
                segment.close();
                index.close();
            }
        }

        private void readChunk(int number) throws IOException {
            int rows = Math.min(1024, run.rows - number * 1024), offsets = 40 + rows * 12;
            chunk = read(index, 32 + run.headerBytes + number * 16424L, 40 + rows * 16, chunk);
            String name = Path.of(run.name).getFileName().toString();
            byte[] seed = new byte[12];
            LONG.set(seed, 0, Long.parseUnsignedLong(name.substring(0, 16), 16));
            INT.set(seed, 8, Integer.parseUnsignedInt(name.substring(17), 16));
            require(crc(seed, chunk, 8, 32 + rows * 16) == u32(chunk, 4), "damaged index");
            long start = u32(chunk, offsets) & 0xffffffffL;
            int bytes = (int) ((u32(chunk, 28) & 0xffffffffL) - start);
            data = values.data = read(segment, start, bytes, data);
            int known = u32(chunk, 36), crc = crc(new byte[0], data, 0, bytes);
            require(known == 1 && crc == u32(chunk, 32), "damaged entries of " + name);
            count = times.nulls = 0;
            for (int row = 0; row < rows; row++) {
                int place = offsets + row * 4, at = (int) (u32(chunk, place) - start);
                int end = row + 1 < rows ? (int) (u32(chunk, place + 4) - start) : bytes;
                long entry = run.firstEntry + number * 1024 + row;
                require(u32(data, at) == run.marker && u32(data, at + 16) == entry, "no record");
                readEntry(at, end);
            }
        }

        private void readEntry(int at, int recordEnd) {
            int end = at + 40 + u32(data, at + 8), prefix = u32(data, at + 12) & 0xffff;
            require(end + (data[at + 15] == 0 ? 4 : 0) == recordEnd, "a record's size");
            int messages = u32(data, at + 20);
            long first = (long) LONG.get(data, at + 32) + 1 - messages;
            require(nextIndex < 0 || first == nextIndex, "a gap in the indexes");
            nextIndex = first + messages;
            if (data[at + 14] != 0) {
                return;  // a control entry
            }
            long time = Long.MIN_VALUE;
            if (prefix > 6 && data[at + 46] == 8) {
                position = at + 47;
                time = varint() * 1000;
            } else {
                times.nulls += messages;
            }
            List.of(values, indexes, times).forEach(each -> each.ensure(count + messages));
            for (int place = 0; place < messages; place++) {
                indexes.numbers[count + place] = first + place;
                times.numbers[count + place] = time;
            }
            if (wantsValues) {
                readValues(at + 40 + prefix, end, messages);
            }
            count += messages;
        }

        private void readValues(int body, int end, int messages) {
            int payload = body + 10 + (int) BIG.get(data, body + 6);
            boolean batched = false;
            require(data[body] == 14 && data[body + 1] == 1, "an entry without checksum");
            for (position = body + 10; position < payload; ) {
                int key = (int) varint();
                batched |= key >> 3 == 11;
                skip(key, OF_ENTRIES);
            }
            if (!batched) {
                values.starts[count] = payload;
                values.ends[count] = end;
                return;
            }
            for (int place = 0; place < messages; place++) {
                int member = payload + 4 + (int) BIG.get(data, payload);
                int bytes = 0;
                for (position = payload + 4; position < member; ) {
                    int key = (int) varint(), skipped = skip(key, OF_MESSAGES);
                    bytes = key >> 3 == 3 ? skipped : bytes;
                }
                values.starts[count + place] = member;
                values.ends[count + place] = payload = member + bytes;
            }
            require(payload == end, "a batch ends elsewhere");
        }

        /** The number of a field, or how many bytes it has. */
        private int skip(int key, int refused) {
            require(key >> 3 > 31 || (refused >> (key >> 3) & 1) == 0, "field " + (key >> 3));
            int type = key & 7, number = type % 2 == 0 ? (int) varint() : type == 1 ? 8 : 4;
            position += type == 0 ? 0 : number;
            return number;
        }

        private long varint() {
            long value = 0;
            int shift = 0;
            for (; data[position] < 0; shift += 7) {
                value |= (data[position++] & 0x7fL) << shift;
            }
            return value | (long) data[position++] << shift;
        }
    }

    /** Numbers, or values that stay where they were read. */
    private static final class Column extends ColumnVector {
        private long[] numbers = new long[1024];
        private byte[] data;
        private int[] starts = new int[1024], ends = new int[1024];
        private int nulls;

        Column(DataType type) { super(type); }

        void ensure(int count) {
            if (count > numbers.length) {
                numbers = Arrays.copyOf(numbers, count * 2);
                starts = Arrays.copyOf(starts, count * 2);
                ends = Arrays.copyOf(ends, count * 2);
            }
        }

        @Override public long getLong(int row) { return numbers[row]; }
        @Override public byte[] getBinary(int row) {
            return Arrays.copyOfRange(data, starts[row], ends[row]);
        }
        @Override public boolean hasNull() { return nulls > 0; }
        @Override public int numNulls() { return nulls; }
        @Override public boolean isNullAt(int row) { return numbers[row] == Long.MIN_VALUE; }
        @Override public void close() {}
        @Override public boolean getBoolean(int row) { throw none(); }
        @Override public byte getByte(int row) { throw none(); }
        @Override public short getShort(int row) { throw none(); }
        @Override public int getInt(int row) { throw none(); }
        @Override public float getFloat(int row) { throw none(); }
        @Override public double getDouble(int row) { throw none(); }
        @Override public ColumnarArray getArray(int row) { throw none(); }
        @Override public ColumnarMap getMap(int row) { throw none(); }
        @Override public Decimal getDecimal(int row, int precision, int scale) { throw none(); }
        @Override public UTF8String getUTF8String(int row) { throw none(); }
        @Override public ColumnVector getChild(int number) { throw none(); }
    }

    /** Compression, encryption, null values, chunks; and messages compacted away: not done here. */
    private static final int OF_ENTRIES = 1 << 8 | 1 << 13 | 1 << 25 | 1 << 27;
    private static final int OF_MESSAGES = 1 << 4 | 1 << 9;
    private static final VarHandle INT = byteArrayViewVarHandle(int[].class, LITTLE_ENDIAN);
    private static final VarHandle LONG = byteArrayViewVarHandle(long[].class, LITTLE_ENDIAN);
    private static final VarHandle BIG = byteArrayViewVarHandle(int[].class, BIG_ENDIAN);

    private static int crc(byte[] seed, byte[] from, int at, int bytes) {
        CRC32C checksum = new CRC32C();
        checksum.update(seed);
        checksum.update(from, at, bytes);
        return (int) checksum.getValue();
    }

    private static int u32(byte[] from, int at) { return (int) INT.get(from, at); }

    /** So many bytes of a file, in the buffer or in a larger one. */
    private static byte[] read(FileChannel file, long at, int bytes, byte[] buffer)
        throws IOException {
        byte[] room = buffer.length < bytes ? new byte[bytes * 2] : buffer;
        ByteBuffer into = ByteBuffer.wrap(room, 0, bytes);
        while (into.hasRemaining()) {
            require(file.read(into, at + into.position()) > 0, "a file is too short");
        }
        return room;
    }

    private static RuntimeException none() { return new UnsupportedOperationException(); }

    private static void require(boolean good, String what) {
        if (!good) throw new IllegalStateException(what);
    }
}
