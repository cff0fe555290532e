import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.kafka.common.record.LogEntry;
import org.apache.kafka.common.record.MemoryRecords;

/** Reads record sets, one in base64 a line, as Java clients of 0.8.2 and 0.9 do (magic 0). */
public class ReadMessages {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(read(Base64.getDecoder().decode(line)));
        }
    }

    static String read(byte[] set) {
        StringBuilder seen = new StringBuilder();
        try {
            for (LogEntry entry : MemoryRecords.readableRecords(ByteBuffer.wrap(set))) {
                entry.record().ensureValid();
                seen.append(entry.offset()).append(':').append(size(entry.record().key())).append(':')
                    .append(size(entry.record().value())).append(":-1 ");
            }
        } catch (Exception error) {
            return "failed: " + error;
        }
        return seen.toString().trim();
    }

    static int size(ByteBuffer field) {
        return field == null ? -1 : field.remaining();
    }
}
