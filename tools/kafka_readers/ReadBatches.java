import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;

/** Reads record sets, one in base64 a line, as Java clients from 0.11 on do; prints what it sees. */
public class ReadBatches {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(read(Base64.getDecoder().decode(line)));
        }
    }

    static String read(byte[] set) {
        StringBuilder seen = new StringBuilder();
        try {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(set)).batches()) {
                batch.ensureValid();
                if (batch.isControlBatch()) continue;
                for (org.apache.kafka.common.record.Record record : batch) {
                    seen.append(record.offset()).append(':').append(record.keySize()).append(':')
                        .append(record.valueSize()).append(':').append(record.timestamp()).append(' ');
                }
            }
        } catch (Exception error) {
            return "failed: " + error;
        }
        return seen.toString().trim();
    }
}
